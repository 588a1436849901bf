package snapshots

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/berth-storage/berth/volume"
)

func snapshotContent(name, snapshot, node string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"driver": volume.DriverName, "volumeSnapshotRef": map[string]any{"namespace": "default", "name": snapshot}, "secret": "not kept"},
	}}
	if node != "" {
		o.SetLabels(map[string]string{volume.LabelSnapshotManagedBy: node})
	}
	return o
}

// TestSnapshots: the watch begins with the first question and brings the nodes.
func TestSnapshots(t *testing.T) {
	kinds := map[schema.GroupVersionResource]string{snapshotContents: "VolumeSnapshotContentList"}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds,
		snapshotContent("c1", "monday", "n1"), snapshotContent("c2", "central", ""))
	changed := make(chan struct{}, 16)
	s := New(t.Context(), nil, func() { changed <- struct{}{} })
	s.client = func() (dynamic.Interface, error) { return client, nil }
	// The first question is answered, not only begun to be looked into.
	if node, ok := s.NodeOf("default", "monday"); !ok || node != "n1" {
		t.Errorf("the first question is answered with %q", node)
	}
	<-changed
	<-changed
	cases := map[string]struct{ namespace, name, want string }{
		"of a node":      {"default", "monday", "n1"},
		"of a service":   {"default", "central", ""},
		"unknown":        {"default", "tuesday", ""},
		"another's name": {"other", "monday", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got, ok := s.NodeOf(tc.namespace, tc.name); got != tc.want || ok != (tc.want != "") {
				t.Errorf("node %q, %t; want %q", got, ok, tc.want)
			}
		})
	}
	if _, err := client.Resource(snapshotContents).Update(t.Context(), snapshotContent("c2", "central", "n2"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-changed
	if got, _ := s.NodeOf("default", "central"); got != "n2" {
		t.Errorf("node %q after the label came, want n2", got)
	}
	for _, o := range s.informer.GetStore().List() {
		if _, there, _ := unstructured.NestedString(o.(*unstructured.Unstructured).Object, "spec", "secret"); there {
			t.Error("more is kept than is read")
		}
	}
	none := New(t.Context(), nil, func() {})
	if node, ok := none.NodeOf("default", "monday"); ok {
		t.Errorf("without a client the snapshot is on %q", node)
	}
}
