package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// TestKinds: what the controllers watch, list or write is known, alone and as a
// list, with its scope.
func TestKinds(t *testing.T) {
	mapper, err := kinds(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[client.Object]meta.RESTScopeName{
		&corev1.Node{}:                  meta.RESTScopeNameRoot,
		&corev1.PersistentVolume{}:      meta.RESTScopeNameRoot,
		&corev1.PersistentVolumeClaim{}: meta.RESTScopeNameNamespace,
		&corev1.Pod{}:                   meta.RESTScopeNameNamespace,
		&storagev1.StorageClass{}:       meta.RESTScopeNameRoot,
		&storagev1.CSINode{}:            meta.RESTScopeNameRoot,
		&storagev1.CSIStorageCapacity{}: meta.RESTScopeNameNamespace,
	}
	for object, want := range cases {
		gvk, err := apiutil.GVKForObject(object, scheme.Scheme)
		if err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"", "List"} {
			kind := gvk.GroupKind()
			kind.Kind += suffix
			if got, err := mapper.RESTMapping(kind, gvk.Version); err != nil || got.Scope.Name() != want {
				t.Errorf("%s: got %v, %v, want scope %s", kind, got, err, want)
			}
		}
	}
}
