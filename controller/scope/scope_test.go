package scope

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/volume"
)

// TestCache: of what grows with the cluster, an agent holds its own only.
func TestCache(t *testing.T) {
	s := Scope{Driver: volume.DriverName, Node: strings.Repeat("n", 70)}
	cache := s.Cache("berth-system", AllClaims)
	kinds := make(map[string]bool)
	for o, by := range cache {
		switch o.(type) {
		case *corev1.Node, *storagev1.CSINode:
			kinds["node"] = by.Field.Matches(fields.Set{"metadata.name": s.Node}) && !by.Field.Matches(fields.Set{"metadata.name": "other"})
		case *corev1.PersistentVolume:
			mine := labels.Set{volume.LabelNode: volume.NodeLabelValue(s.Node)}
			kinds["pv"] = by.Label.Matches(mine) && !by.Label.Matches(labels.Set{})
		case *storagev1.CSIStorageCapacity:
			_, only := by.Namespaces["berth-system"]
			kinds["capacity"] = only && len(by.Namespaces) == 1 && by.Label.Matches(labels.Set(s.CapacityLabels())) && !by.Label.Matches(labels.Set{})
		}
	}
	for _, kind := range []string{"node", "pv", "capacity"} {
		if !kinds[kind] {
			t.Errorf("%s objects of others are cached", kind)
		}
	}
	for _, o := range []client.Object{&corev1.PersistentVolumeClaim{}, &storagev1.StorageClass{}} {
		found := false
		for have, by := range cache {
			found = found || sameType(have, o) && by.Label == nil && by.Field == nil
		}
		if !found {
			t.Errorf("%T must be cached whole", o)
		}
	}
}

// TestCacheOfClaims: with the label, another node's claims and those of no node
// are not held.
func TestCacheOfClaims(t *testing.T) {
	s := Scope{Driver: volume.DriverName, Node: "n1"}
	found := false
	for o, by := range s.Cache("berth-system", LabelledClaims) {
		if _, ok := o.(*corev1.PersistentVolumeClaim); !ok {
			continue
		}
		found = true
		if !by.Label.Matches(labels.Set{volume.LabelNode: "n1"}) {
			t.Error("the node's own claims are not cached")
		}
		for _, others := range []labels.Set{{}, {volume.LabelNode: "n2"}, {volume.LabelNode: ""}} {
			if by.Label.Matches(others) {
				t.Errorf("a claim with the labels %v is cached", others)
			}
		}
	}
	if !found {
		t.Error("claims are not cached at all")
	}
}

func sameType(a, b client.Object) bool {
	switch a.(type) {
	case *corev1.PersistentVolumeClaim:
		_, ok := b.(*corev1.PersistentVolumeClaim)
		return ok
	case *storagev1.StorageClass:
		_, ok := b.(*storagev1.StorageClass)
		return ok
	default:
		return false
	}
}

func TestValidate(t *testing.T) {
	if err := (Scope{Driver: "d", Node: "n"}).Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []Scope{{}, {Driver: "d"}, {Node: "n"}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is no scope", bad)
		}
	}
}
