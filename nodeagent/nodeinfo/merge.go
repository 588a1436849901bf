package nodeinfo

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/volume"
)

// migratedPlugins are the in-tree plugins whose volumes go through CSI
// everywhere since Kubernetes 1.31 (kubelet, csi_plugin.go): the scheduler and
// the attach-detach controller translate only what a CSINode names.
const migratedPlugins = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file," +
	"kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"

// Info is what a driver says of its node.
type Info struct {
	Driver string
	NodeID string
	// MaxVolumes is 0 where the driver sets no limit.
	MaxVolumes int32
	Topology   volume.Topology
}

// infoOf reads a NodeGetInfo response.
func infoOf(driver string, r *csi.NodeGetInfoResponse) (Info, error) {
	if r.GetNodeId() == "" {
		return Info{}, fmt.Errorf("driver %s: NodeGetInfo answered an empty node_id", driver)
	}
	if r.GetMaxVolumesPerNode() < 0 {
		return Info{}, fmt.Errorf("driver %s: NodeGetInfo answered max_volumes_per_node %d; 0 means no limit", driver, r.GetMaxVolumesPerNode())
	}
	return Info{
		Driver:     driver,
		NodeID:     r.GetNodeId(),
		MaxVolumes: int32(min(r.GetMaxVolumesPerNode(), math.MaxInt32)),
		Topology:   volume.Topology(r.GetAccessibleTopology().GetSegments()),
	}, nil
}

// LabelConflictError says that a driver reports another place than the Node's
// label does. Neither can be preferred without stranding somebody's volumes.
type LabelConflictError struct {
	Node, Driver, Label, Have, Want string
}

func (e *LabelConflictError) Error() string {
	return fmt.Sprintf("node %s: label %s is %q, driver %s reports %q; correct the driver's topology, or remove the label if no volume depends on it",
		e.Node, e.Label, e.Have, e.Driver, e.Want)
}

// nodeChange is what of a Node's metadata is to change. A nil value removes.
type nodeChange struct {
	Labels      map[string]*string
	Annotations map[string]*string
}

func (c nodeChange) empty() bool { return len(c.Labels) == 0 && len(c.Annotations) == 0 }

// patch is the change as a JSON merge patch that the API server refuses with a
// conflict if the Node is no longer the one that the change was computed from.
func (c nodeChange) patch(node *corev1.Node) ([]byte, error) {
	metadata := map[string]any{"resourceVersion": node.ResourceVersion, "uid": node.UID}
	if len(c.Labels) > 0 {
		metadata["labels"] = c.Labels
	}
	if len(c.Annotations) > 0 {
		metadata["annotations"] = c.Annotations
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}

// install computes the Node's change for a driver that registers.
func install(node *corev1.Node, info Info) (nodeChange, error) {
	var change nodeChange
	for _, key := range slices.Sorted(maps.Keys(info.Topology)) {
		want := info.Topology[key]
		have, ok := node.Labels[key]
		if ok && have != want {
			return nodeChange{}, &LabelConflictError{Node: node.Name, Driver: info.Driver, Label: key, Have: have, Want: want}
		}
		if !ok {
			if change.Labels == nil {
				change.Labels = make(map[string]*string)
			}
			change.Labels[key] = &want
		}
	}
	ids, err := nodeIDs(node)
	if err != nil {
		return nodeChange{}, err
	}
	if ids[info.Driver] != info.NodeID {
		ids[info.Driver] = info.NodeID
		change.Annotations, err = idAnnotation(ids)
	}
	return change, err
}

// uninstall computes the Node's change for a driver that is gone. Topology
// labels stay: volumes of the driver may still be pinned to them.
func uninstall(node *corev1.Node, driver string) (nodeChange, error) {
	ids, err := nodeIDs(node)
	if err != nil {
		return nodeChange{}, err
	}
	if _, ok := ids[driver]; !ok {
		return nodeChange{}, nil
	}
	delete(ids, driver)
	annotations, err := idAnnotation(ids)
	return nodeChange{Annotations: annotations}, err
}

func nodeIDs(node *corev1.Node) (map[string]string, error) {
	ids := make(map[string]string)
	text := node.Annotations[volume.AnnNodeID]
	if text == "" {
		return ids, nil
	}
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return nil, fmt.Errorf("node %s: annotation %s is not a JSON map of strings; remove it: %w", node.Name, volume.AnnNodeID, err)
	}
	if ids == nil { // the JSON text "null"
		ids = make(map[string]string)
	}
	return ids, nil
}

func idAnnotation(ids map[string]string) (map[string]*string, error) {
	if len(ids) == 0 {
		return map[string]*string{volume.AnnNodeID: nil}, nil
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return nil, fmt.Errorf("writing node ids: %w", err)
	}
	s := string(text)
	return map[string]*string{volume.AnnNodeID: &s}, nil
}

// errOtherOwner says that a CSINode belongs to an earlier Node of this name.
var errOtherOwner = errors.New("the CSINode is owned by another Node object")

// newCSINode is a CSINode without drivers, owned by its Node.
func newCSINode(node *corev1.Node) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name:            node.Name,
		Annotations:     map[string]string{volume.AnnMigratedPlugins: migratedPlugins},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}}
}

// adopt brings a CSINode's owner and annotation up to date. It returns
// errOtherOwner for one that must be deleted first.
func adopt(current *storagev1.CSINode, node *corev1.Node) (*storagev1.CSINode, error) {
	next := current.DeepCopy()
	owned := false
	for _, o := range next.OwnerReferences {
		if o.Kind != "Node" {
			continue
		}
		if o.UID != node.UID {
			return nil, errOtherOwner
		}
		owned = true
	}
	if !owned {
		next.OwnerReferences = append(next.OwnerReferences, newCSINode(node).OwnerReferences...)
	}
	if next.Annotations == nil {
		next.Annotations = make(map[string]string)
	}
	next.Annotations[volume.AnnMigratedPlugins] = migratedPlugins
	return next, nil
}

// withDriver puts the driver's entry into a CSINode. The API server lets only
// the allocatable count of an entry change; for any other change the entry is
// taken out first, and again is true: the caller writes that and asks again.
func withDriver(current *storagev1.CSINode, info Info) (next *storagev1.CSINode, again bool) {
	entry := storagev1.CSINodeDriver{
		Name:         info.Driver,
		NodeID:       info.NodeID,
		TopologyKeys: slices.Sorted(maps.Keys(info.Topology)),
	}
	if info.MaxVolumes > 0 {
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: &info.MaxVolumes}
	}
	next = current.DeepCopy()
	i := indexOf(next, info.Driver)
	switch {
	case i < 0:
		next.Spec.Drivers = append(next.Spec.Drivers, entry)
	case next.Spec.Drivers[i].NodeID != entry.NodeID || !slices.Equal(next.Spec.Drivers[i].TopologyKeys, entry.TopologyKeys):
		return withoutDriver(current, info.Driver), true
	default:
		next.Spec.Drivers[i].Allocatable = entry.Allocatable
	}
	return next, false
}

// withoutDriver takes the driver's entry out of a CSINode.
func withoutDriver(current *storagev1.CSINode, driver string) *storagev1.CSINode {
	next := current.DeepCopy()
	next.Spec.Drivers = slices.DeleteFunc(next.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
	return next
}

func indexOf(n *storagev1.CSINode, driver string) int {
	return slices.IndexFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
}
