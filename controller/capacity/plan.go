// Package capacity publishes, as CSIStorageCapacity objects, what the pools of
// a node can still hold: one object per StorageClass of the driver. It pushes
// on change and polls nothing.
//
// Schedulers subtract from a published capacity the claims that it does not
// contain yet, told by the pool's count of allocations (volume.PoolCapacity).
// For that sum to come out, a capacity is written only after every provisioning
// that it may already contain has its PersistentVolume: read first, then wait
// for those in flight, then write.
//
// Each object is owned by the Node and goes with it. While the driver's
// registration comes and goes, as in an update, the objects stay.
package capacity

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// objectName is the name of the object of a node and class: always the same, so
// that a crash between a write and its answer leaves no second one.
func objectName(node, class string) string {
	sum := sha256.Sum256([]byte(node + "/" + class))
	return "csisc-" + hex.EncodeToString(sum[:16])
}

// buildObject makes the object of a class. segment is the value of the node's
// label volume.TopologyNodeKey.
func buildObject(s scope.Scope, namespace string, node *corev1.Node, segment, class string, c volume.PoolCapacity) *storagev1.CSIStorageCapacity {
	object := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      objectName(s.Node, class),
			Labels:    s.CapacityLabels(),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
			}},
		},
		StorageClassName: class,
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{volume.TopologyNodeKey: segment}},
		Capacity:         quantity(max(c.Available, 0)),
	}
	if c.MaximumVolumeSize > 0 {
		object.MaximumVolumeSize = quantity(c.MaximumVolumeSize)
	}
	if c.Pool != "" {
		object.Annotations = map[string]string{
			volume.AnnotationPool:       c.Pool,
			volume.AnnotationAllocation: strconv.FormatInt(c.Allocation, 10),
		}
	}
	return object
}

func quantity(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

// writes is what brings the published objects to the wanted ones.
type writes struct {
	create, update, remove []*storagev1.CSIStorageCapacity
}

// plan compares the published objects with the wanted ones. kept are names that
// are neither written nor removed, because what they should say is not known.
func plan(published []storagev1.CSIStorageCapacity, wanted []*storagev1.CSIStorageCapacity, kept map[string]bool) writes {
	missing := make(map[string]*storagev1.CSIStorageCapacity, len(wanted))
	for _, w := range wanted {
		missing[w.Name] = w
	}
	var out writes
	for i := range published {
		have := &published[i]
		want := missing[have.Name]
		switch {
		case kept[have.Name]:
		case want == nil:
			out.remove = append(out.remove, have)
		case !sameKey(have, want):
			// Class and topology cannot be changed in place.
			out.remove = append(out.remove, have)
			out.create = append(out.create, want)
		case !same(have, want):
			out.update = append(out.update, merged(have, want))
		}
		delete(missing, have.Name)
	}
	for name, w := range missing {
		if !kept[name] {
			out.create = append(out.create, w)
		}
	}
	slices.SortFunc(out.create, func(a, b *storagev1.CSIStorageCapacity) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func sameKey(have, want *storagev1.CSIStorageCapacity) bool {
	return have.StorageClassName == want.StorageClassName && equality.Semantic.DeepEqual(have.NodeTopology, want.NodeTopology)
}

// same reports that have says all that want says. What others added to labels
// and annotations is theirs.
func same(have, want *storagev1.CSIStorageCapacity) bool {
	return equality.Semantic.DeepEqual(have, merged(have, want))
}

// merged is have with all that want says.
func merged(have, want *storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	out := have.DeepCopy()
	out.Capacity, out.MaximumVolumeSize = want.Capacity, want.MaximumVolumeSize
	out.OwnerReferences = want.OwnerReferences
	out.Labels = overlay(have.Labels, want.Labels)
	// A pool that is no longer known is not left standing.
	rest := maps.Clone(have.Annotations)
	delete(rest, volume.AnnotationPool)
	delete(rest, volume.AnnotationAllocation)
	out.Annotations = overlay(rest, want.Annotations)
	return out
}

func overlay(under, over map[string]string) map[string]string {
	if len(under) == 0 {
		return over
	}
	out := maps.Clone(under)
	maps.Copy(out, over)
	return out
}
