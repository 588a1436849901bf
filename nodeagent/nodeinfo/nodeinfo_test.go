package nodeinfo

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-storage/berth/volume"
)

const idKey = volume.AnnNodeID

func makeNode(labels, annotations map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-1", ResourceVersion: "7", Labels: labels, Annotations: annotations}}
}

func info(driver, id string, limit int32, topology map[string]string) Info {
	return Info{Driver: driver, NodeID: id, MaxVolumes: limit, Topology: topology}
}

func TestInstallOnNode(t *testing.T) {
	cases := map[string]struct {
		reason    string
		node      *corev1.Node
		info      Info
		want      nodeChange
		wantError string
	}{
		"First": {
			reason: "labels and annotation are added",
			node:   makeNode(nil, nil),
			info:   info("a.b", "id", 0, map[string]string{"zone": "z1"}),
			want:   nodeChange{Labels: map[string]*string{"zone": new("z1")}, Annotations: map[string]*string{idKey: new(`{"a.b":"id"}`)}},
		},
		"OthersKept": {
			reason: "another driver's id is not lost",
			node:   makeNode(map[string]string{"zone": "z1"}, map[string]string{idKey: `{"x.y":"9"}`}),
			info:   info("a.b", "id", 0, map[string]string{"zone": "z1"}),
			want:   nodeChange{Annotations: map[string]*string{idKey: new(`{"a.b":"id","x.y":"9"}`)}},
		},
		"NothingToDo": {
			reason: "a restart writes nothing",
			node:   makeNode(map[string]string{"zone": "z1"}, map[string]string{idKey: `{"a.b":"id"}`}),
			info:   info("a.b", "id", 0, map[string]string{"zone": "z1"}),
		},
		"NullAnnotation": {
			reason: "the JSON text null is an empty map",
			node:   makeNode(nil, map[string]string{idKey: `null`}),
			info:   info("a.b", "id", 0, nil),
			want:   nodeChange{Annotations: map[string]*string{idKey: new(`{"a.b":"id"}`)}},
		},
		"Conflict": {
			reason:    "an existing label of another value is never overwritten",
			node:      makeNode(map[string]string{"zone": "z2"}, nil),
			info:      info("a.b", "id", 0, map[string]string{"zone": "z1"}),
			wantError: `node n1: label zone is "z2", driver a.b reports "z1"`,
		},
		"BrokenAnnotation": {
			reason:    "what cannot be read is not thrown away",
			node:      makeNode(nil, map[string]string{idKey: `{`}),
			info:      info("a.b", "id", 0, nil),
			wantError: "not a JSON map",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := install(c.node, c.info)
			if c.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantError) {
					t.Fatalf("%s: error %v, want %q", c.reason, err, c.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestUninstallFromNode(t *testing.T) {
	cases := map[string]struct {
		reason, annotation string
		want               nodeChange
	}{
		"Last":    {"an empty map is no annotation", `{"a.b":"id"}`, nodeChange{Annotations: map[string]*string{idKey: nil}}},
		"One":     {"others stay", `{"a.b":"id","x.y":"9"}`, nodeChange{Annotations: map[string]*string{idKey: new(`{"x.y":"9"}`)}}},
		"Unknown": {"nothing to do", `{"x.y":"9"}`, nodeChange{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := uninstall(makeNode(map[string]string{"zone": "z"}, map[string]string{idKey: c.annotation}), "a.b")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func entry(name, id string, count *int32, keys ...string) storagev1.CSINodeDriver {
	d := storagev1.CSINodeDriver{Name: name, NodeID: id, TopologyKeys: keys}
	if count != nil {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: count}
	}
	return d
}

func TestDriverInCSINode(t *testing.T) {
	other := entry("x.y", "9", nil, "k")
	cases := map[string]struct {
		reason    string
		have      []storagev1.CSINodeDriver
		info      Info
		want      []storagev1.CSINodeDriver
		wantAgain bool
	}{
		"New": {
			reason: "topology keys are sorted, a limit of 0 is none",
			have:   []storagev1.CSINodeDriver{other},
			info:   info("a.b", "id", 0, map[string]string{"z": "1", "a": "2"}),
			want:   []storagev1.CSINodeDriver{other, entry("a.b", "id", nil, "a", "z")},
		},
		"LimitChanges": {
			reason: "the one mutable field is changed in place",
			have:   []storagev1.CSINodeDriver{entry("a.b", "id", new(int32(3)), "a"), other},
			info:   info("a.b", "id", 5, map[string]string{"a": "2"}),
			want:   []storagev1.CSINodeDriver{entry("a.b", "id", new(int32(5)), "a"), other},
		},
		"IDChanges": {
			reason: "the API server refuses a new id in place",
			have:   []storagev1.CSINodeDriver{entry("a.b", "old", nil, "a"), other},
			info:   info("a.b", "id", 0, map[string]string{"a": "2"}),
			want:   []storagev1.CSINodeDriver{other}, wantAgain: true,
		},
		"TopologyChanges": {
			reason: "so it does new keys",
			have:   []storagev1.CSINodeDriver{entry("a.b", "id", nil, "a")},
			info:   info("a.b", "id", 0, map[string]string{"b": "2"}),
			want:   []storagev1.CSINodeDriver{}, wantAgain: true,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			have := newCSINode(makeNode(nil, nil))
			have.Spec.Drivers = c.have
			got, again := withDriver(have, c.info)
			if diff := cmp.Diff(c.want, got.Spec.Drivers); diff != "" || again != c.wantAgain {
				t.Errorf("%s: again %v, want %v (-want +got):\n%s", c.reason, again, c.wantAgain, diff)
			}
			if again {
				got, again = withDriver(got, c.info)
				if indexOf(got, c.info.Driver) < 0 || again {
					t.Errorf("%s: the second step does not add the entry", c.reason)
				}
			}
		})
	}
}

func TestInfoOf(t *testing.T) {
	cases := map[string]struct {
		reason    string
		rsp       *csi.NodeGetInfoResponse
		want      Info
		wantError string
	}{
		"Whole":    {"all fields", &csi.NodeGetInfoResponse{NodeId: "i", MaxVolumesPerNode: 4, AccessibleTopology: &csi.Topology{Segments: map[string]string{"k": "v"}}}, info("d", "i", 4, map[string]string{"k": "v"}), ""},
		"Huge":     {"the API holds 32 bits", &csi.NodeGetInfoResponse{NodeId: "i", MaxVolumesPerNode: 1 << 40}, info("d", "i", 1<<31-1, nil), ""},
		"NoID":     {"an empty id is useless", &csi.NodeGetInfoResponse{}, Info{}, "empty node_id"},
		"Negative": {"a negative limit is a bug of the driver", &csi.NodeGetInfoResponse{NodeId: "i", MaxVolumesPerNode: -1}, Info{}, "max_volumes_per_node"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := infoOf("d", c.rsp)
			if (err != nil) != (c.wantError != "") || err != nil && !strings.Contains(err.Error(), c.wantError) {
				t.Fatalf("%s: error %v, want %q", c.reason, err, c.wantError)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// driver answers NodeGetInfo.
type driver struct {
	csi.NodeClient
	rsp *csi.NodeGetInfoResponse
	err error
}

func (d driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest, ...grpc.CallOption) (*csi.NodeGetInfoResponse, error) {
	return d.rsp, d.err
}

func answering(id string) driver {
	return driver{rsp: &csi.NodeGetInfoResponse{
		NodeId: id, MaxVolumesPerNode: 2,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "z1"}},
	}}
}

type world struct {
	client *fake.Clientset
	clock  *clocktesting.FakeClock
	events *record.FakeRecorder
	m      *Manager
}

func newWorld(objects ...runtime.Object) *world {
	w := &world{client: fake.NewClientset(objects...), clock: clocktesting.NewFakeClock(time.Now()), events: record.NewFakeRecorder(16)}
	w.m = New(Config{NodeName: "n1", Client: w.client, Recorder: w.events, Clock: w.clock})
	return w
}

func (w *world) csiNode(t *testing.T) *storagev1.CSINode {
	t.Helper()
	c, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) ids(t *testing.T) map[string]string {
	t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	if text := n.Annotations[idKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			t.Fatal(err)
		}
	}
	return ids
}

func TestRegisterWritesNodeThenCSINode(t *testing.T) {
	w := newWorld(makeNode(nil, nil))
	if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
		t.Fatal(err)
	}
	var writes []string
	for _, a := range w.client.Actions() {
		if a.GetVerb() != "get" {
			writes = append(writes, a.GetVerb()+" "+a.GetResource().Resource)
		}
	}
	if diff := cmp.Diff([]string{"patch nodes", "create csinodes"}, writes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got := w.csiNode(t)
	want := newCSINode(makeNode(nil, nil))
	want.Spec.Drivers = []storagev1.CSINodeDriver{entry("a.b", "id", new(int32(2)), "zone")}
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.OwnerReferences, got.OwnerReferences); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a.b": "id"}, w.ids(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// A changed id replaces the entry in two writes.
	w.client.ClearActions()
	if err := w.m.Register(t.Context(), "a.b", answering("id2")); err != nil {
		t.Fatal(err)
	}
	if got := w.csiNode(t).Spec.Drivers[0].NodeID; got != "id2" {
		t.Errorf("node id %q, want id2", got)
	}
	updates := 0
	for _, a := range w.client.Actions() {
		if a.GetVerb() == "update" {
			updates++
		}
	}
	if updates != 2 {
		t.Errorf("%d updates, want 2: the API server refuses to change an entry's id", updates)
	}
}

func TestLostRaceIsRepeated(t *testing.T) {
	w := newWorld(makeNode(nil, nil))
	raced := false
	w.client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if raced {
			return false, nil, nil
		}
		raced = true
		if patch := string(a.(clienttesting.PatchAction).GetPatch()); !strings.Contains(patch, `"resourceVersion":"7"`) {
			t.Errorf("patch %s does not say what it is based on", patch)
		}
		// Another writer was first.
		other := makeNode(nil, map[string]string{idKey: `{"x.y":"9"}`})
		if err := w.client.Tracker().Update(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, other, ""); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("changed"))
	})
	if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a.b": "id", "x.y": "9"}, w.ids(t)); diff != "" {
		t.Errorf("an id was lost (-want +got):\n%s", diff)
	}
}

func TestLabelConflictIsAnEvent(t *testing.T) {
	w := newWorld(makeNode(map[string]string{"zone": "z9"}, nil))
	err := w.m.Register(t.Context(), "a.b", answering("id"))
	if _, ok := errors.AsType[*LabelConflictError](err); !ok {
		t.Fatalf("error %v, want a conflict", err)
	}
	if e := <-w.events.Events; !strings.Contains(e, "TopologyLabelConflict") {
		t.Errorf("event %q", e)
	}
	if len(w.ids(t)) != 0 {
		t.Error("a refused driver left its id on the node")
	}
}

func TestCSINodeOfAnEarlierNodeIsReplaced(t *testing.T) {
	old := newCSINode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-0"}})
	old.Spec.Drivers = []storagev1.CSINodeDriver{entry("gone", "x", nil)}
	w := newWorld(makeNode(nil, nil), old)
	if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
		t.Fatal(err)
	}
	got := w.csiNode(t)
	if got.OwnerReferences[0].UID != "uid-1" || len(got.Spec.Drivers) != 1 || got.Spec.Drivers[0].Name != "a.b" {
		t.Errorf("got %v %v", got.OwnerReferences, got.Spec.Drivers)
	}
}

func TestGrace(t *testing.T) {
	left := newCSINode(makeNode(nil, nil))
	left.Spec.Drivers = []storagev1.CSINodeDriver{entry("stale.one", "s", nil), entry("a.b", "id", new(int32(2)), "zone")}
	w := newWorld(makeNode(map[string]string{"zone": "z1"}, map[string]string{idKey: `{"stale.one":"s","a.b":"id"}`}), left)
	steps := []struct {
		reason  string
		do      func()
		process []string
		want    []string
	}{
		{"an earlier run's drivers start their grace", func() {}, []string{initKey, "stale.one", "a.b"}, []string{"stale.one", "a.b"}},
		{"one registers within it", func() {
			w.clock.Step(time.Minute)
			if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
				t.Fatal(err)
			}
		}, []string{"a.b"}, []string{"stale.one", "a.b"}},
		{"the other did not", func() { w.clock.Step(time.Minute) }, []string{"stale.one", "a.b"}, []string{"a.b"}},
		{"a driver that restarts keeps its entry", func() {
			w.m.Deregister("a.b")
			w.clock.Step(Grace - time.Second)
		}, []string{"a.b"}, []string{"a.b"}},
		{"once more, from its return", func() {
			if err := w.m.Register(t.Context(), "a.b", answering("id")); err != nil {
				t.Fatal(err)
			}
			w.clock.Step(time.Hour)
		}, []string{"a.b"}, []string{"a.b"}},
		{"one that stays away loses it", func() {
			w.m.Deregister("a.b")
			w.clock.Step(Grace)
		}, []string{"a.b"}, nil},
	}
	for _, s := range steps {
		s.do()
		for _, key := range s.process {
			if err := w.m.process(t.Context(), key); err != nil {
				t.Fatalf("%s: %v", s.reason, err)
			}
		}
		var got []string
		for _, d := range w.csiNode(t).Spec.Drivers {
			got = append(got, d.Name)
		}
		if diff := cmp.Diff(s.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.reason, diff)
		}
		if len(w.ids(t)) != len(s.want) {
			t.Errorf("%s: node ids %v, want those of %v", s.reason, w.ids(t), s.want)
		}
	}
}

func TestRunWaitsOutTheGrace(t *testing.T) {
	left := newCSINode(makeNode(nil, nil))
	left.Spec.Drivers = []storagev1.CSINodeDriver{entry("stale.one", "s", nil)}
	w := newWorld(makeNode(nil, nil), left)
	removed := make(chan struct{}, 1)
	w.client.PrependReactor("update", "csinodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if c := a.(clienttesting.UpdateAction).GetObject().(*storagev1.CSINode); len(c.Spec.Drivers) == 0 {
			removed <- struct{}{}
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.m.Run(ctx) }()
	for done := false; !done; {
		select {
		case <-removed:
			done = true
		case <-time.After(time.Millisecond):
			w.clock.Step(10 * time.Second)
		}
	}
	cancel()
	<-ended
}
