package capacity

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

func testScope() scope.Scope { return scope.Scope{Driver: volume.DriverName, Node: "n1"} }

func makeNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-1", Labels: map[string]string{volume.TopologyNodeKey: "n1"}}}
}

func object(class string, c volume.PoolCapacity) *storagev1.CSIStorageCapacity {
	return buildObject(testScope(), "berth-system", makeNode(), "n1", class, c)
}

func TestBuildObject(t *testing.T) {
	got := object("fast", volume.PoolCapacity{Pool: "p", Allocation: 7, Available: volume.GiB, MaximumVolumeSize: volume.MiB})
	want := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "berth-system", Name: got.Name,
			Labels: map[string]string{
				"csi.storage.k8s.io/drivername": volume.DriverName, "csi.storage.k8s.io/managed-by": "berth", "berth.dev/node": "n1",
			},
			Annotations:     map[string]string{"berth.dev/pool": "p", "berth.dev/allocation": "7"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "node-1"}},
		},
		StorageClassName:  "fast",
		NodeTopology:      &metav1.LabelSelector{MatchLabels: map[string]string{"topology.berth.dev/node": "n1"}},
		Capacity:          new(resource.MustParse("1Gi")),
		MaximumVolumeSize: new(resource.MustParse("1Mi")),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	over := object("fast", volume.PoolCapacity{Available: -5})
	if over.Capacity.Value() != 0 || over.MaximumVolumeSize != nil || len(over.Annotations) != 0 {
		t.Errorf("an overcommitted pool has no room, and an unknown pool no annotations: %v", over)
	}
	if objectName("n1", "fast") == objectName("n2", "fast") || objectName("n1", "a") == objectName("n1", "b") {
		t.Error("objects of two nodes or classes share a name")
	}
}

func TestPlan(t *testing.T) {
	one := volume.PoolCapacity{Pool: "p", Allocation: 1, Available: volume.GiB}
	two := volume.PoolCapacity{Pool: "p", Allocation: 2, Available: volume.GiB}
	foreign := object("fast", one)
	foreign.Labels["team"] = "x"
	moved := object("fast", one)
	moved.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{volume.TopologyNodeKey: "old"}}
	unowned := object("fast", one)
	unowned.OwnerReferences = nil
	cases := map[string]struct {
		reason    string
		published []*storagev1.CSIStorageCapacity
		wanted    []*storagev1.CSIStorageCapacity
		kept      []string
		// want lists the classes: created, updated, removed.
		want [3]string
	}{
		"nothing":      {reason: "no class, no object"},
		"first":        {reason: "an object per class", wanted: []*storagev1.CSIStorageCapacity{object("a", one), object("b", one)}, want: [3]string{"a b"}},
		"unchanged":    {reason: "written only on change", published: []*storagev1.CSIStorageCapacity{object("fast", one)}, wanted: []*storagev1.CSIStorageCapacity{object("fast", one)}},
		"others' keys": {reason: "what others added is theirs", published: []*storagev1.CSIStorageCapacity{foreign}, wanted: []*storagev1.CSIStorageCapacity{object("fast", one)}},
		"count": {
			reason:    "an equal capacity after another allocation says something new",
			published: []*storagev1.CSIStorageCapacity{object("fast", one)}, wanted: []*storagev1.CSIStorageCapacity{object("fast", two)}, want: [3]string{"", "fast"},
		},
		"pool gone": {
			reason:    "the annotations of a pool that is gone go too",
			published: []*storagev1.CSIStorageCapacity{object("fast", one)}, wanted: []*storagev1.CSIStorageCapacity{object("fast", volume.PoolCapacity{})}, want: [3]string{"", "fast"},
		},
		"owner":    {reason: "an object without its owner would outlive the node", published: []*storagev1.CSIStorageCapacity{unowned}, wanted: []*storagev1.CSIStorageCapacity{object("fast", one)}, want: [3]string{"", "fast"}},
		"obsolete": {reason: "the class is gone", published: []*storagev1.CSIStorageCapacity{object("fast", one)}, want: [3]string{"", "", "fast"}},
		"moved": {
			reason:    "the topology cannot be changed in place",
			published: []*storagev1.CSIStorageCapacity{moved}, wanted: []*storagev1.CSIStorageCapacity{object("fast", one)}, want: [3]string{"fast", "", "fast"},
		},
		"unread": {
			reason:    "what gave no answer stays as it is",
			published: []*storagev1.CSIStorageCapacity{object("fast", one)}, kept: []string{"fast"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var published []storagev1.CSIStorageCapacity
			for _, o := range tc.published {
				published = append(published, *o)
			}
			kept := make(map[string]bool)
			for _, class := range tc.kept {
				kept[objectName("n1", class)] = true
			}
			w := plan(published, tc.wanted, kept)
			got := [3]string{classes(w.create), classes(w.update), classes(w.remove)}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			for _, u := range w.update {
				if u.Annotations[volume.AnnotationAllocation] != tc.wanted[0].Annotations[volume.AnnotationAllocation] {
					t.Errorf("%s: the update says %v", tc.reason, u.Annotations)
				}
			}
		})
	}
}

func classes(objects []*storagev1.CSIStorageCapacity) string {
	names := make(map[string]bool)
	var out []string
	for _, o := range objects {
		if !names[o.StorageClassName] {
			out = append(out, o.StorageClassName)
		}
		names[o.StorageClassName] = true
	}
	// Creations are in the order of the objects' names, which are hashes.
	if len(out) == 2 && out[0] > out[1] {
		out[0], out[1] = out[1], out[0]
	}
	return strings.Join(out, " ")
}
