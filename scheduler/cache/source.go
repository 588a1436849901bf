package cache

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// Snapshots tells which node holds the data of a VolumeSnapshot: the label
// volume.LabelSnapshotManagedBy of its content. False where it has none, or
// where nothing is known of it yet.
type Snapshots interface {
	NodeOf(namespace, name string) (node string, ok bool)
}

// snapshotGroup is the API group of VolumeSnapshot.
const snapshotGroup = "snapshot.storage.k8s.io"

// source is where the claim's data comes from, nil where that ties it to no
// place. It needs mu.
//
// A volume is cloned by the driver that serves it and from within its reach, so
// a source of another driver's says nothing here: the provisioner will refuse it
// with a better reason.
func (c *Cache) source(pvc *corev1.PersistentVolumeClaim, provisioner string) *binding.Source {
	group, kind, namespace, name := dataSource(pvc)
	switch {
	case group == snapshotGroup && kind == "VolumeSnapshot":
		if c.snapshots == nil {
			return nil
		}
		if node, ok := c.snapshots.NodeOf(namespace, name); ok {
			return &binding.Source{Name: "snapshot " + namespace + "/" + name, Place: nodePlace(node)}
		}
	case group == "" && kind == "PersistentVolumeClaim":
		key := namespace + "/" + name
		origin := get[corev1.PersistentVolumeClaim](c.stores.claims, key)
		if origin == nil {
			return nil
		}
		if e := c.volumes.byName[origin.Spec.VolumeName]; e != nil {
			if driver, _ := driverOf(provisioner); e.key.Driver == driver && !e.place.isEverywhere() {
				return &binding.Source{Name: "claim " + key, Place: e.place}
			}
			return nil
		}
		// Not made yet: it will be where it is being made.
		node := origin.Annotations[volume.AnnSelectedNode]
		if node == "" {
			node = c.ledger.reservedNode(string(origin.UID))
		}
		if class := c.Class(binding.ClassName(origin)); node != "" && class != nil && class.Provisioner == provisioner {
			return &binding.Source{Name: "claim " + key, Place: nodePlace(node)}
		}
	}
	return nil
}

// dataSource reads dataSourceRef, which the API server keeps equal to dataSource
// where both can say it.
func dataSource(pvc *corev1.PersistentVolumeClaim) (group, kind, namespace, name string) {
	namespace = pvc.Namespace
	if ref := pvc.Spec.DataSourceRef; ref != nil {
		if ref.APIGroup != nil {
			group = *ref.APIGroup
		}
		if ref.Namespace != nil && *ref.Namespace != "" {
			namespace = *ref.Namespace
		}
		return group, ref.Kind, namespace, ref.Name
	}
	if ref := pvc.Spec.DataSource; ref != nil {
		if ref.APIGroup != nil {
			group = *ref.APIGroup
		}
		return group, ref.Kind, namespace, ref.Name
	}
	return "", "", "", ""
}

// ClaimSource is the key of the claim that a claim is to be a clone of.
func ClaimSource(pvc *corev1.PersistentVolumeClaim) (key string, ok bool) {
	group, kind, namespace, name := dataSource(pvc)
	return namespace + "/" + name, group == "" && kind == "PersistentVolumeClaim"
}

// nodePlace is one node, by name.
func nodePlace(node string) *place {
	return &place{text: "node " + node, spots: []spot{{keys: []string{nameKey}, values: []string{node}}}}
}

func (p *place) isEverywhere() bool {
	return p.test == nil && len(p.spots) == 1 && len(p.spots[0].keys) == 0
}
