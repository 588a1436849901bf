package nodeinfo

import (
	"context"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
)

// TestLabels goes through the life of a node's labels: late, complete,
// changed, and a deleted Node.
func TestLabels(t *testing.T) {
	const zone, rack = "topology.kubernetes.io/zone", "example.com/rack"
	node := func(labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: labels}}
	}
	src := fcache.NewFakeControllerSource()
	src.Add(node(map[string]string{zone: "a", "other": "x"}))
	l, err := newLabels(src, "n1", []string{zone, rack})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); l.Run(ctx) }()
	defer func() { stop(); <-ran }()
	if !cache.WaitForCacheSync(ctx.Done(), l.informer.HasSynced) {
		t.Fatal("no sync")
	}

	ended, end := context.WithCancel(ctx)
	end()
	if _, err := l.Wait(ended); err == nil || !strings.Contains(err.Error(), rack) || !strings.Contains(err.Error(), "n1") {
		t.Errorf("a missing label: got %v, want an error that names it and the node", err)
	}

	src.Modify(node(map[string]string{zone: "a", rack: "r1"}))
	want := map[string]string{zone: "a", rack: "r1"}
	got, err := l.Wait(ctx)
	if err != nil || !maps.Equal(got, want) {
		t.Fatalf("complete labels: got %v, %v, want %v", got, err, want)
	}
	select {
	case <-l.Changed():
		t.Error("a change was signalled though Wait's answer is true")
	default:
	}

	src.Delete(node(want))
	src.Add(node(map[string]string{zone: "b", rack: "r1"}))
	<-l.Changed()
	want[zone] = "b"
	if got, err := l.Wait(ctx); err != nil || !maps.Equal(got, want) {
		t.Errorf("changed labels: got %v, %v, want %v", got, err, want)
	}
}
