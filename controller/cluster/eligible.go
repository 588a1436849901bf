package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// claim is what is read of a PersistentVolumeClaim of the driver.
type claim struct {
	uid                    types.UID
	name                   types.NamespacedName
	version                string
	class, selected, bound string
	bytes                  int64
	deleting, lost         bool
	// refused says why no node is chosen whatever the cluster looks like: the
	// claim asks for what the driver does not do.
	refused string
	// object is the claim itself, for writing and events; read only.
	object *corev1.PersistentVolumeClaim
}

// readClaim reads a claim; false for a claim of another driver.
func readClaim(driver string, pvc *corev1.PersistentVolumeClaim) (claim, bool) {
	selected := pvc.Annotations[volume.AnnSelectedNode]
	if !(scope.Scope{Driver: driver, Node: selected}).OwnsClaim(pvc) {
		return claim{}, false
	}
	request := pvc.Spec.Resources.Requests[corev1.ResourceStorage]
	return claim{
		uid: pvc.UID, name: types.NamespacedName{Namespace: pvc.Namespace, Name: pvc.Name}, version: pvc.ResourceVersion,
		class: storagehelpers.GetPersistentVolumeClaimClass(pvc), selected: selected, bound: pvc.Spec.VolumeName,
		bytes: volume.Bytes(request), deleting: pvc.DeletionTimestamp != nil, lost: pvc.Status.Phase == corev1.ClaimLost,
		refused: refused(pvc), object: pvc,
	}, true
}

// refused names what controller/provision would refuse once a node is chosen:
// a claim that gets no volume must not hold space on a node.
func refused(pvc *corev1.PersistentVolumeClaim) string {
	switch {
	case pvc.Spec.Selector != nil:
		return "spec.selector asks for an existing volume; remove it to have one provisioned"
	case pvc.Spec.DataSource != nil || pvc.Spec.DataSourceRef != nil:
		return "a data source is not supported by the driver; a volume populator has to provide the volume"
	case pvc.Spec.VolumeAttributesClassName != nil && *pvc.Spec.VolumeAttributesClassName != "":
		return "the driver has no volume attributes; remove spec.volumeAttributesClassName"
	default:
		return ""
	}
}

// class is what is read of a StorageClass of the driver.
type class struct {
	name      string
	immediate bool
	topology  []corev1.TopologySelectorTerm
}

// waits reports whether the claim is to get a node here: its class binds at
// once, and nothing is selected, bound or made for it.
func waits(c claim, classes map[string]class, made map[types.UID]bool) bool {
	return classes[c.class].immediate && c.selected == "" && c.bound == "" && !c.deleting && !c.lost && !made[c.uid]
}

// abandoned reports whether the claim's selection may be one of a node that is
// gone: the node is unknown and no volume was made. Whether it really is, the
// API server has to say.
func abandoned(c claim, exists map[string]bool, made map[types.UID]bool) bool {
	return c.selected != "" && c.bound == "" && !c.deleting && !c.lost && !exists[c.selected] && !made[c.uid]
}

// holds reports whether space is held for the claim where it is selected: its
// volume is not known yet. A claim may name its volume before the volume's own
// event arrives.
func holds(c claim, made map[types.UID]bool) bool {
	return c.selected != "" && !c.lost && !made[c.uid]
}
