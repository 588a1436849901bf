package cache

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// claimFacts is what the ledger reads of a claim.
type claimFacts struct {
	uid, class, version  string
	selected, volumeName string
	// lost: the claim's volume is gone for good; nothing is awaited.
	lost bool
	// bytes is what the claim asks for.
	bytes int64
}

func factsOfClaim(pvc *corev1.PersistentVolumeClaim) claimFacts {
	request := pvc.Spec.Resources.Requests[corev1.ResourceStorage]
	return claimFacts{
		uid: string(pvc.UID), class: binding.ClassName(pvc), version: pvc.ResourceVersion,
		selected: pvc.Annotations[volume.AnnSelectedNode], volumeName: pvc.Spec.VolumeName,
		lost: pvc.Status.Phase == corev1.ClaimLost, bytes: volume.Bytes(request),
	}
}

// volumeFacts is what the ledger reads of a PersistentVolume: whose it is, and
// which pool's count of allocations it made.
type volumeFacts struct {
	name, claimUID string
	// pool is empty and allocation unnumbered unless the volume has both.
	pool       string
	allocation int64
	bytes      int64
}

func factsOfVolume(pv *corev1.PersistentVolume) volumeFacts {
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	f := volumeFacts{name: pv.Name, bytes: volume.Bytes(capacity)}
	if pv.Spec.ClaimRef != nil {
		f.claimUID = string(pv.Spec.ClaimRef.UID)
	}
	f.pool, f.allocation = volume.NumberOf(pv.Annotations)
	return f
}

// capacityFacts is a CSIStorageCapacity, read once.
type capacityFacts struct {
	key, class, version string
	place               *place
	// pool is the pool's UUID, or for an object without number the object
	// itself: it shares its bytes with no other.
	pool       string
	allocation int64

	capacity, maximum int64
	// bounded: maximum is published; 0 then means that no volume is possible.
	// unlimited: only a maximum volume size is published. empty: neither is,
	// which offers nothing (upstream: capacitySufficient).
	bounded, unlimited, empty bool
}

// factsOf reads an object. Its place is held until the ledger drops it.
func (all places) factsOf(key string, o *storagev1.CSIStorageCapacity) capacityFacts {
	f := capacityFacts{key: key, class: o.StorageClassName, version: o.ResourceVersion, place: all.ofTopology(o.NodeTopology)}
	if o.Capacity != nil {
		f.capacity = volume.Bytes(*o.Capacity)
	}
	if o.MaximumVolumeSize != nil {
		f.maximum = volume.Bytes(*o.MaximumVolumeSize)
		f.bounded, f.unlimited = true, o.Capacity == nil
	}
	f.empty = o.Capacity == nil && o.MaximumVolumeSize == nil
	if f.pool, f.allocation = volume.NumberOf(o.Annotations); f.allocation == volume.Unnumbered {
		f.pool = "object " + key
	}
	return f
}

// atLeast reports whether version a is b or newer. Versions that cannot be
// compared are taken as equal: no API server has such.
func atLeast(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || n >= 0
}
