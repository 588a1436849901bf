package volume

import (
	"maps"
	"slices"
	"unicode/utf8"
)

// Reason says, as a code from a closed set, why a node or a volume is refused.
// Codes are metric labels; Sentence is for people. A Reason is an answer; an
// error is something broken.
type Reason string

// The closed set. Each has a sentence in sentences; a test holds the two together.
const (
	// ReasonNodeAffinity: a bound PersistentVolume cannot be reached from the node.
	ReasonNodeAffinity Reason = "NodeAffinity"
	// ReasonNoMatchingVolume: no PersistentVolume fits the claim there, and
	// none can be provisioned.
	ReasonNoMatchingVolume Reason = "NoMatchingVolume"
	// ReasonTopologyNotAllowed: the class's allowedTopologies exclude the node.
	ReasonTopologyNotAllowed Reason = "TopologyNotAllowed"
	// ReasonSelectedElsewhere: the claim is being provisioned on another node.
	ReasonSelectedElsewhere Reason = "SelectedElsewhere"
	// ReasonSourceElsewhere: the claim is made from a snapshot or a volume that
	// cannot be reached from the node.
	ReasonSourceElsewhere Reason = "SourceElsewhere"
	// ReasonNotEnoughCapacity: the pool has too little free space for the
	// pod's claims together.
	ReasonNotEnoughCapacity Reason = "NotEnoughCapacity"
	// ReasonVolumeMissing: a claim is bound to a PersistentVolume that does not exist.
	ReasonVolumeMissing Reason = "VolumeMissing"
	// ReasonAttachLimit: the node cannot attach one more volume of the driver.
	ReasonAttachLimit Reason = "AttachLimit"
	// ReasonDriverMissing: the driver is not registered on the node.
	ReasonDriverMissing Reason = "DriverMissing"

	// ReasonClaimMissing: a claim of the pod does not exist.
	ReasonClaimMissing Reason = "ClaimMissing"
	// ReasonClaimDeleting: a claim of the pod is being deleted.
	ReasonClaimDeleting Reason = "ClaimDeleting"
	// ReasonClaimLost: a claim of the pod lost its PersistentVolume.
	ReasonClaimLost Reason = "ClaimLost"
	// ReasonClaimNotOwned: the claim of a generic ephemeral volume belongs to another object.
	ReasonClaimNotOwned Reason = "ClaimNotOwned"
	// ReasonClaimUnbound: a claim of a class with immediate binding is not bound yet.
	ReasonClaimUnbound Reason = "ClaimUnbound"

	// ReasonPending: the node works on it, nothing is wrong.
	ReasonPending Reason = "Pending"
	// ReasonStepFailed: a step on the node failed and will be repeated.
	ReasonStepFailed Reason = "StepFailed"
	// ReasonAttachNeeded: the driver wants volumes attached, which this node cannot do.
	ReasonAttachNeeded Reason = "AttachNeeded"
	// ReasonNotCSI: the volume is of a kind that this node does not serve.
	ReasonNotCSI Reason = "NotCSI"
	// ReasonVolumeMode: filesystem asked where the volume is a block device, or the reverse.
	ReasonVolumeMode Reason = "VolumeMode"
	// ReasonVolumeTaken: the PersistentVolume belongs to another claim.
	ReasonVolumeTaken Reason = "VolumeTaken"
	// ReasonClaimReplaced: the claim is another one of the same name than when
	// the pod got its volume.
	ReasonClaimReplaced Reason = "ClaimReplaced"
	// ReasonVolumeInUse: another pod of the node has a volume that only one may have.
	ReasonVolumeInUse Reason = "VolumeInUse"
	// ReasonGrowUnsupported: the claim waits for the node to grow a volume
	// whose driver does not grow volumes on nodes.
	ReasonGrowUnsupported Reason = "GrowUnsupported"
)

// sentences begin with the words that upstream's users know
// (kube-scheduler, volumebinding/binder.go, nodevolumelimits/csi.go), so that
// what they search for still finds the answer.
var sentences = map[Reason]string{
	ReasonNodeAffinity:       "node(s) didn't match PersistentVolume's node affinity",
	ReasonNoMatchingVolume:   "node(s) didn't find available persistent volumes to bind",
	ReasonTopologyNotAllowed: "node(s) didn't find available persistent volumes to bind",
	ReasonSelectedElsewhere:  "node(s) didn't find available persistent volumes to bind",
	ReasonSourceElsewhere:    "node(s) didn't find available persistent volumes to bind",
	ReasonNotEnoughCapacity:  "node(s) did not have enough free storage",
	ReasonVolumeMissing:      "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
	ReasonAttachLimit:        "node(s) exceed max volume count",
	ReasonDriverMissing:      "CSI driver is not installed on the node",
	ReasonClaimMissing:       "persistentvolumeclaim not found",
	ReasonClaimDeleting:      "persistentvolumeclaim is being deleted",
	ReasonClaimLost:          "persistentvolumeclaim bound to non-existent persistentvolume",
	ReasonClaimNotOwned:      "persistentvolumeclaim was not created for the pod",
	ReasonClaimUnbound:       "pod has unbound immediate PersistentVolumeClaims",
	ReasonPending:            "volume is being prepared",
	ReasonStepFailed:         "a step on the node failed, it will be repeated",
	ReasonAttachNeeded:       "the driver's CSIDriver object is missing or asks for attaching, which this node does not do; for a driver without attaching, set attachRequired: false",
	ReasonNotCSI:             "only persistent volumes of CSI drivers are served on this node",
	ReasonVolumeMode:         "volumeMode of the claim does not match how the pod uses it",
	ReasonVolumeTaken:        "persistentvolume is bound to another persistentvolumeclaim",
	ReasonClaimReplaced:      "persistentvolumeclaim was replaced while the pod uses the former volume; delete the pod",
	ReasonVolumeInUse:        "volume is in use by another pod on the node",
	ReasonGrowUnsupported:    "the driver cannot grow the volume on the node",
}

// Reasons lists the closed set, sorted, for metrics that zero their label values.
func Reasons() []Reason { return slices.Sorted(maps.Keys(sentences)) }

// Sentence is the reason in words, without detail.
func (r Reason) Sentence() string { return sentences[r] }

// DetailMax bounds the text of a Refusal, in bytes. kube-scheduler groups
// nodes by equal text and cuts an event at 1,024 bytes; five causes must fit.
const DetailMax = 200

// Refusal is one Reason with its detail: which claim, which PersistentVolume,
// what is free, what was asked. Nodes that fail for one cause must carry equal
// details, or the event of a pod on a large cluster becomes unreadable; so no
// detail names a node.
type Refusal struct {
	Reason Reason
	Detail string
}

// String is the sentence and the detail, at most DetailMax bytes, cut between
// characters.
func (r Refusal) String() string {
	s := r.Reason.Sentence()
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return cut(s, DetailMax)
}

// cut shortens s to at most n bytes without splitting a character, and marks
// the cut with an ellipsis.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const mark = "…"
	n -= len(mark)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}
