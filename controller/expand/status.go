package expand

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/volume"
)

// The functions of this file change objects in memory; the caller writes them.

// becomeInProgress notes the size that is about to be tried.
func becomeInProgress(claim *corev1.PersistentVolumeClaim, size int64, now time.Time) {
	setTried(claim, size, corev1.PersistentVolumeClaimControllerResizeInProgress)
	setConditions(claim, now, corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimResizing})
}

// isInProgress reports that becomeInProgress would change nothing that matters.
func isInProgress(claim *corev1.PersistentVolumeClaim, size int64) bool {
	return volume.Bytes(*claim.Status.AllocatedResources.Storage()) == size &&
		claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimControllerResizeInProgress
}

// becomeInfeasible notes that the driver refused the size as such.
func becomeInfeasible(claim *corev1.PersistentVolumeClaim, size int64, said string, now time.Time) {
	setTried(claim, size, corev1.PersistentVolumeClaimControllerResizeInfeasible)
	setConditions(claim, now, corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimControllerResizeError, Message: said,
	})
}

// becomeNodePending hands the claim to the node.
func becomeNodePending(claim *corev1.PersistentVolumeClaim, size int64, now time.Time) {
	setTried(claim, size, corev1.PersistentVolumeClaimNodeResizePending)
	setConditions(claim, now, corev1.PersistentVolumeClaimCondition{
		Type:    corev1.PersistentVolumeClaimFileSystemResizePending,
		Message: "Waiting for the node to grow the file system of the volume.",
	})
}

// becomeGrown notes that the volume has its new size. allocatedResources stays,
// as the size that quota counts (KEP-1790).
func becomeGrown(claim *corev1.PersistentVolumeClaim, size int64, now time.Time) {
	setTried(claim, size, "")
	if claim.Status.Capacity == nil {
		claim.Status.Capacity = make(corev1.ResourceList, 1)
	}
	claim.Status.Capacity[corev1.ResourceStorage] = quantity(size)
	setConditions(claim, now)
}

// noteNodeStep keeps, as an annotation, whether the node has to act. It reports
// whether that was a change.
func noteNodeStep(claim *corev1.PersistentVolumeClaim, needed bool) (changed bool) {
	had, noted := claim.Annotations[volume.AnnNodeExpansionNotRequired]
	if needed {
		delete(claim.Annotations, volume.AnnNodeExpansionNotRequired)
		return noted
	}
	if claim.Annotations == nil {
		claim.Annotations = make(map[string]string, 1)
	}
	claim.Annotations[volume.AnnNodeExpansionNotRequired] = "true"
	return had != "true"
}

// growVolume raises the PersistentVolume's capacity, and never lowers it. before
// is the claim's capacity, noted while the node has yet to act; nil notes
// nothing. It reports whether that was a change.
func growVolume(pv *corev1.PersistentVolume, size int64, before *resource.Quantity) (changed bool) {
	if before != nil {
		if _, noted := pv.Annotations[volume.AnnPreResizeCapacity]; !noted {
			if pv.Annotations == nil {
				pv.Annotations = make(map[string]string, 1)
			}
			pv.Annotations[volume.AnnPreResizeCapacity] = before.String()
			changed = true
		}
	}
	if volume.Bytes(*pv.Spec.Capacity.Storage()) < size {
		if pv.Spec.Capacity == nil {
			pv.Spec.Capacity = make(corev1.ResourceList, 1)
		}
		pv.Spec.Capacity[corev1.ResourceStorage] = quantity(size)
		changed = true
	}
	return changed
}

func setTried(claim *corev1.PersistentVolumeClaim, size int64, state corev1.ClaimResourceStatus) {
	if claim.Status.AllocatedResources == nil {
		claim.Status.AllocatedResources = make(corev1.ResourceList, 1)
	}
	claim.Status.AllocatedResources[corev1.ResourceStorage] = quantity(size)
	if state == "" {
		delete(claim.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
		return
	}
	if claim.Status.AllocatedResourceStatuses == nil {
		claim.Status.AllocatedResourceStatuses = make(map[corev1.ResourceName]corev1.ClaimResourceStatus, 1)
	}
	claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = state
}

// setConditions replaces the conditions of growing by those wanted, all of
// status True, and keeps all others. One that is there already keeps its time.
func setConditions(claim *corev1.PersistentVolumeClaim, now time.Time, wanted ...corev1.PersistentVolumeClaimCondition) {
	old := make(map[corev1.PersistentVolumeClaimConditionType]corev1.PersistentVolumeClaimCondition)
	var rest []corev1.PersistentVolumeClaimCondition
	for _, c := range claim.Status.Conditions {
		if isResizeCondition(c.Type) {
			old[c.Type] = c
		} else {
			rest = append(rest, c)
		}
	}
	for _, c := range wanted {
		c.Status = corev1.ConditionTrue
		c.LastTransitionTime = metav1.NewTime(now)
		if before, ok := old[c.Type]; ok && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
		rest = append(rest, c)
	}
	claim.Status.Conditions = rest
}

func isResizeCondition(t corev1.PersistentVolumeClaimConditionType) bool {
	switch t {
	case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
		corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
		return true
	default:
		return false
	}
}

func quantity(size int64) resource.Quantity { return *resource.NewQuantity(size, resource.BinarySI) }
