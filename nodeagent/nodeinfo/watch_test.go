package nodeinfo

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// state is what of the two objects a driver depends on.
type state struct {
	Zone    string
	IDs     map[string]string
	Owner   string
	Entries []storagev1.CSINodeDriver
}

// state reads the two objects; one that is missing leaves its part empty.
func (w *world) state(t *testing.T) state {
	t.Helper()
	var s state
	if node, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err == nil {
		s.Zone = node.Labels["zone"]
		s.IDs, _ = nodeIDs(node)
	}
	if c, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{}); err == nil {
		s.Entries = c.Spec.Drivers
		if len(c.OwnerReferences) == 1 {
			s.Owner = string(c.OwnerReferences[0].UID)
		}
	}
	return s
}

func (w *world) changeNode(t *testing.T, change func(*corev1.Node)) {
	t.Helper()
	node, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(node)
	if _, err := w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) changeCSINode(t *testing.T, change func(*storagev1.CSINode)) {
	t.Helper()
	c := w.csiNode(t)
	change(c)
	if _, err := w.client.StorageV1().CSINodes().Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) deleteCSINode(t *testing.T) {
	t.Helper()
	if err := w.client.StorageV1().CSINodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err) // the manager may have deleted it first
	}
}

func (w *world) replaceNode(t *testing.T) {
	t.Helper()
	nodes := w.client.CoreV1().Nodes()
	if err := nodes.Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fresh := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-2"}}
	if _, err := nodes.Create(t.Context(), fresh, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// writes counts what was changed through the client.
func (w *world) writes() int {
	n := 0
	for _, a := range w.client.Actions() {
		if !slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) {
			n++
		}
	}
	return n
}

// follow runs the manager until the end of the test; it returns once both
// objects are watched.
func (w *world) follow(t *testing.T) {
	t.Helper()
	watched := make(chan struct{}, 16)
	w.client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		got, err := w.client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		watched <- struct{}{}
		return true, got, err
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	<-watched
	<-watched
}

func TestWhatOthersTakeAwayIsWrittenAgain(t *testing.T) {
	count := func(n int32) *int32 { return &n }
	cases := map[string]struct {
		reason    string
		spoil     func(*testing.T, *world)
		wantOwner string
	}{
		"NodeReplaced": {"the CSINode of the deleted Node is still there", func(t *testing.T, w *world) {
			w.replaceNode(t)
		}, "uid-2"},
		"NodeAndCSINodeReplaced": {"the CSINode goes with its owner, late", func(t *testing.T, w *world) {
			w.replaceNode(t)
			w.deleteCSINode(t)
		}, "uid-2"},
		"LabelRemoved": {"volumes are pinned to the label", func(t *testing.T, w *world) {
			w.changeNode(t, func(n *corev1.Node) { delete(n.Labels, "zone") })
		}, "uid-1"},
		"AnnotationRemoved": {"attachers read the node id", func(t *testing.T, w *world) {
			w.changeNode(t, func(n *corev1.Node) { n.Annotations = nil })
		}, "uid-1"},
		"AnnotationOfAnotherID": {"it is not what the driver said", func(t *testing.T, w *world) {
			w.changeNode(t, func(n *corev1.Node) { n.Annotations[idKey] = `{"a.b":"x"}` })
		}, "uid-1"},
		"CSINodeDeleted": {"by hand", func(t *testing.T, w *world) { w.deleteCSINode(t) }, "uid-1"},
		"EntryRemoved": {"by another writer", func(t *testing.T, w *world) {
			w.changeCSINode(t, func(c *storagev1.CSINode) { c.Spec.Drivers = nil })
		}, "uid-1"},
		"LimitChanged": {"by another writer", func(t *testing.T, w *world) {
			w.changeCSINode(t, func(c *storagev1.CSINode) { c.Spec.Drivers[0].Allocatable.Count = count(9) })
		}, "uid-1"},
		"WithinTheGrace": {"a driver that restarts keeps its entry", func(t *testing.T, w *world) {
			w.m.Deregister("a.b")
			w.replaceNode(t)
		}, "uid-2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(makeNode(nil, nil))
			if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
				t.Fatal(err)
			}
			w.follow(t)
			c.spoil(t, w)
			want := state{
				Zone: "z1", IDs: map[string]string{"a.b": "id"}, Owner: c.wantOwner,
				Entries: []storagev1.CSINodeDriver{entry("a.b", "id", count(2), "zone")},
			}
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			late := time.After(20 * time.Second) // only a failure takes so long
			for {
				diff := cmp.Diff(want, w.state(t))
				if diff == "" {
					return
				}
				select {
				case <-tick.C:
				case <-late:
					t.Fatalf("%s: not written again (-want +got):\n%s", c.reason, diff)
				}
			}
		})
	}
}

func TestARepairOfNothingWritesNothing(t *testing.T) {
	w := newWorld(makeNode(map[string]string{"other": "x"}, nil))
	if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
		t.Fatal(err)
	}
	before := w.writes()
	if err := w.m.process(t.Context(), repairKey); err != nil {
		t.Fatal(err)
	}
	if got := w.writes() - before; got != 0 {
		t.Errorf("%d writes though all is in step", got)
	}
	node, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !inStep(node, w.csiNode(t), w.m.infos()) {
		t.Error("what was just written is not in step: the next event would write again")
	}
}

func TestARepairWaitsForTheNode(t *testing.T) {
	w := newWorld(makeNode(nil, nil))
	if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
		t.Fatal(err)
	}
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	before := w.writes()
	if err := w.m.process(t.Context(), repairKey); err != nil {
		t.Errorf("without a Node: %v, want patience", err)
	}
	if got := w.writes() - before; got != 0 {
		t.Errorf("%d writes without a Node", got)
	}
}

// TestAContradictingLabelIsToldOnce holds the policy: a value that somebody
// else set is not overwritten.
func TestAContradictingLabelIsToldOnce(t *testing.T) {
	w := newWorld(makeNode(nil, nil))
	if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
		t.Fatal(err)
	}
	repair := func() {
		t.Helper()
		if err := w.m.process(t.Context(), repairKey); err != nil {
			t.Fatal(err)
		}
	}
	w.changeNode(t, func(n *corev1.Node) { n.Labels["zone"] = "z9" })
	before := w.writes()
	repair()
	if n := len(w.events.Events); n != 0 {
		t.Errorf("%d events at once: a driver that follows the label has no time to register anew", n)
	}
	w.clock.Step(settleTime)
	repair()
	repair()
	if n := len(w.events.Events); n != 1 {
		t.Fatalf("%d events, want 1", n)
	}
	if e := <-w.events.Events; !strings.Contains(e, "TopologyLabelConflict") || !strings.Contains(e, "z9") {
		t.Errorf("event %q", e)
	}
	if got := w.writes() - before; got != 0 {
		t.Errorf("%d writes, want none against somebody else's label", got)
	}
	// The label goes, as the event advises.
	w.changeNode(t, func(n *corev1.Node) { delete(n.Labels, "zone") })
	repair()
	if got := w.state(t).Zone; got != "z1" {
		t.Errorf("zone %q after the contradiction ended, want z1", got)
	}
}
