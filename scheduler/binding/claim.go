package binding

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/volume"
)

// State says what has to happen to a claim before its pod can run.
type State int

const (
	// StateBound: claim and PersistentVolume name each other, for good.
	StateBound State = iota + 1
	// StateDelayed: the scheduler decides the claim's volume with its node.
	StateDelayed
	// StateImmediate: the PV controller binds the claim without the scheduler,
	// and has not yet. A claim of a class that does not exist is here too.
	StateImmediate
)

// Classify tells the state of a claim from its class, nil where the class is
// unset or does not exist (upstream: volumebinding, GetPodVolumeClaims). A
// class without a binding mode is an error: the API server always sets one.
func Classify(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (State, error) {
	if IsBound(claim) {
		return StateBound, nil
	}
	if class == nil {
		return StateImmediate, nil
	}
	if class.VolumeBindingMode == nil {
		return 0, fmt.Errorf("storage class %q: volumeBindingMode is not set; set it to WaitForFirstConsumer or Immediate", class.Name)
	}
	if *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && claim.Spec.VolumeName == "" {
		return StateDelayed, nil
	}
	return StateImmediate, nil
}

// WhyImmediate says, for a claim in StateImmediate, what it waits for; "" is
// left to the sentence of volume.ReasonClaimUnbound.
func WhyImmediate(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	name := ClassName(claim)
	switch {
	case claim.Spec.VolumeName != "":
		return "waits for the PV controller to bind it to " + claim.Spec.VolumeName
	case name == "":
		return "names no StorageClass, and no volume is bound to it"
	case class == nil:
		return fmt.Sprintf("its StorageClass %q does not exist", name)
	}
	return ""
}

// IsBound reports whether the binding is complete. The annotation's value does
// not matter, nor does the claim's phase (component-helpers, AnnBindCompleted).
func IsBound(claim *corev1.PersistentVolumeClaim) bool {
	_, completed := claim.Annotations[volume.AnnBindCompleted]
	return claim.Spec.VolumeName != "" && completed
}

// ClassName is the name of the claim's class; the beta annotation wins over
// the field (component-helpers, GetPersistentVolumeClaimClass).
func ClassName(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[volume.AnnBetaStorageClass]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// NewPod makes the question of a pod. Delayed claims are ordered by rising
// request, and those of equal request stay in the pod's order, as upstream takes
// them.
func NewPod(bound, delayed []Claim) *Pod {
	delayed = slices.Clone(delayed)
	slices.SortStableFunc(delayed, func(a, b Claim) int { return cmp.Compare(a.Request, b.Request) })
	return &Pod{
		Bound: bound, Delayed: delayed,
		InTree: slices.ContainsFunc(bound, func(c Claim) bool { return c.Volume != nil && c.Volume.InTree != nil }),
	}
}

// Admits reports whether a volume that is reserved for the claim can serve it,
// wherever it is. Upstream asks neither selector nor access modes of those
// (component-helpers, FindMatchingVolume).
func (c *Claim) Admits(v *Volume) bool {
	return v.Class == c.Class.Name && v.Capacity >= c.Request && v.Block == c.Block && v.AttributesClass == c.AttributesClass
}

// Allows reports whether the class lets a volume be provisioned for the node.
func (c *Class) Allows(node *Node) bool { return volume.Allowed(c.AllowedTopologies, node.Labels) }
