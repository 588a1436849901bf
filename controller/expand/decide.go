// Package expand grows volumes on the controller's side, by the rules of
// "recover from volume expansion failure" (KEP-1790; external-resizer,
// expand_and_recover.go): while a size is being tried it stands in the claim's
// status.allocatedResources, so that quota counts it; a try whose end is
// unknown is finished before another size is tried; after a final failure the
// user may ask for less, down to what the volume has.
//
// Order of writes: the size that is tried, before the call; after it first the
// PersistentVolume's capacity, then the claim. The node's step, where one is
// needed, is nodeagent's (or the kubelet's), which sets status.capacity last.
package expand

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// Action is what is to be done for a claim.
type Action int

const (
	// Nothing: the claim has what it asks for, or is not ours, or it is the
	// node's turn.
	Nothing Action = iota
	// Grow: call ControllerExpandVolume for Plan.Size.
	Grow
	// Tidy: the growth is complete; take the note of the old capacity off the
	// PersistentVolume.
	Tidy
)

// Plan is an Action and its size.
type Plan struct {
	Action Action
	// Size is in bytes.
	Size int64
	// Slow: the size was refused as infeasible; repeat it at long intervals.
	Slow bool
}

// question is everything that decide may see.
type question struct {
	scope scope.Scope
	// claim may be stale: every write carries its resourceVersion.
	claim *corev1.PersistentVolumeClaim
	// pv is nil if the cache, which holds this scope's own, has none.
	pv *corev1.PersistentVolume
	// failed is the size of the last call that failed for good, in bytes; 0 if
	// none is known, as after a restart.
	failed int64
}

// sizes are the four that matter, in bytes; 0 means that one is not set.
type sizes struct {
	// asked: spec.resources.requests. has: status.capacity. tried:
	// status.allocatedResources. pv: the PersistentVolume's capacity.
	asked, has, tried, pv int64
}

func sizesOf(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) sizes {
	return sizes{
		asked: volume.Bytes(*claim.Spec.Resources.Requests.Storage()),
		has:   volume.Bytes(*claim.Status.Capacity.Storage()),
		tried: volume.Bytes(*claim.Status.AllocatedResources.Storage()),
		pv:    volume.Bytes(*pv.Spec.Capacity.Storage()),
	}
}

// decide says what is to be done for a claim.
func decide(q question) Plan {
	if !ours(q) {
		return Plan{}
	}
	s := sizesOf(q.claim, q.pv)
	if s.asked <= s.has {
		if _, noted := q.pv.Annotations[volume.AnnPreResizeCapacity]; noted && s.pv <= s.has {
			return Plan{Action: Tidy}
		}
		return Plan{}
	}
	// A size that is no growth was tried in an earlier one and means nothing now.
	unfinished := s.tried > s.has
	switch state := q.claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; {
	case state == corev1.PersistentVolumeClaimControllerResizeInProgress && unfinished && q.failed != s.tried:
		// How that call ended is not known: it may have taken effect.
		return Plan{Action: Grow, Size: s.tried}
	case state == corev1.PersistentVolumeClaimControllerResizeInfeasible && s.tried == s.asked:
		return Plan{Action: Grow, Size: s.asked, Slow: true}
	case isNodePending(state) && unfinished && s.pv >= s.tried:
		// The node finishes this size first; another one comes after it.
		return Plan{}
	case isNodePending(state) && unfinished:
		return Plan{Action: Grow, Size: s.tried}
	case state == corev1.PersistentVolumeClaimNodeResizeInfeasible && unfinished:
		// The same size once more lets the node try again. Not at once: the two
		// would go round in circles.
		return Plan{Action: Grow, Size: s.tried, Slow: true}
	default:
		return Plan{Action: Grow, Size: s.asked}
	}
}

func isNodePending(state corev1.ClaimResourceStatus) bool {
	return state == corev1.PersistentVolumeClaimNodeResizePending ||
		state == corev1.PersistentVolumeClaimNodeResizeInProgress
}

// ours reports that claim and PersistentVolume are bound to each other and the
// volume is of this scope.
func ours(q question) bool {
	return q.claim.DeletionTimestamp == nil && q.claim.Status.Phase == corev1.ClaimBound &&
		q.pv != nil && q.pv.DeletionTimestamp == nil && q.scope.OwnsVolume(q.pv) &&
		q.claim.Spec.VolumeName == q.pv.Name &&
		q.pv.Spec.ClaimRef != nil && q.pv.Spec.ClaimRef.UID == q.claim.UID
}
