// Package reclaim deletes what controller/provision made: when a
// PersistentVolume is released and its policy is Delete, the volume goes first,
// then the object, then the finalizer that held it. With policy Retain only
// the finalizer goes.
//
// Nothing is deleted on the word of a cache. Before DeleteVolume the
// PersistentVolume and its claim are read from the API server: a policy that
// was changed to Retain a moment ago counts, and so does a claim that still
// names the volume.
package reclaim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// Action is what is to be done for a PersistentVolume.
type Action int

const (
	// Nothing: the object is as it should be, or is not ours.
	Nothing Action = iota
	// Protect: add the finalizer, so that the object cannot go before the volume.
	Protect
	// Unprotect: remove the finalizer; the volume stays.
	Unprotect
	// Delete: delete the volume, then the object.
	Delete
)

// String names the action as logs do.
func (a Action) String() string {
	switch a {
	case Nothing:
		return "nothing"
	case Protect:
		return "protect"
	case Unprotect:
		return "unprotect"
	case Delete:
		return "delete"
	default:
		return "unknown"
	}
}

// decide says what is to be done for a PersistentVolume, from the object alone.
// Source: KEP-2644 (HonorPVReclaimPolicy) and sig-storage-lib, shouldDelete.
func decide(s scope.Scope, pv *corev1.PersistentVolume) Action {
	if !s.OwnsVolume(pv) {
		return Nothing
	}
	held := slices.Contains(pv.Finalizers, volume.FinalizerProvisioner)
	deleting := pv.DeletionTimestamp != nil
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		if held {
			return Unprotect
		}
		return Nothing
	}
	if deleting {
		// Without the finalizer the volume is deleted already, and other
		// finalizers hold the object. A bound volume has data that a claim names.
		if held && pv.Status.Phase != corev1.VolumeBound {
			return Delete
		}
		return Nothing
	}
	switch pv.Status.Phase {
	case corev1.VolumeReleased:
		return Delete
	case corev1.VolumeBound:
		if !held {
			return Protect
		}
	case corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeFailed:
	}
	return Nothing
}

// stillNamed reports whether the claim that the PersistentVolume was made for
// names it. claim is the live claim of the name in claimRef, nil if there is
// none. Another claim of the same name does not count, nor does the claim while
// it names no volume: it was never mounted.
func stillNamed(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return claim != nil && pv.Spec.ClaimRef != nil &&
		claim.UID == pv.Spec.ClaimRef.UID && claim.Spec.VolumeName == pv.Name
}
