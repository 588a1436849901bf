package plugin

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/volume"
)

// hint asks the registered hint of a resource, by the action that the objects
// make: whether it was registered for it at all matters as much as its answer.
func (r *rig) hint(resource fwk.EventResource, pod *v1.Pod, oldObj, newObj any) fwk.QueueingHint {
	r.t.Helper()
	action := fwk.Update
	switch {
	case oldObj == nil:
		action = fwk.Add
	case newObj == nil:
		action = fwk.Delete
	}
	events, err := r.plugin.EventsToRegister(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range events {
		if e.Event.Resource == resource && e.Event.ActionType&action != 0 {
			h, err := e.QueueingHintFn(klog.FromContext(r.ctx), pod, oldObj, newObj)
			if err != nil {
				r.t.Fatal(err)
			}
			return h
		}
	}
	return fwk.QueueSkip
}

func TestHints(t *testing.T) {
	const queued, skipped = fwk.Queue, fwk.QueueSkip
	withNode := func(pvc *v1.PersistentVolumeClaim, node string) *v1.PersistentVolumeClaim {
		metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnSelectedNode, node)
		return pvc
	}
	driver := func(change func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
		d := makeDriver(driverName)
		change(&d.Spec)
		return d
	}
	csiNode := func(count *int32) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driverName, Allocatable: &storagev1.VolumeNodeResources{Count: count}}}}}
	}
	reserved := makePV("pv", "other", "1Gi", "")
	reserved.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "a"}
	cases := map[string]struct {
		reason   string
		resource fwk.EventResource
		old, new any
		want     fwk.QueueingHint
	}{
		"class added":           {"the class that the pod asks for", fwk.StorageClass, nil, makeClass("fast", driverName), queued},
		"other class added":     {"a class that no claim of the pod names", fwk.StorageClass, nil, makeClass("odd", driverName), skipped},
		"topologies changed":    {"other nodes are allowed", fwk.StorageClass, makeClass("fast", driverName, "zone", "z1"), makeClass("fast", driverName, "zone", "z2"), queued},
		"class touched":         {"nothing that is read", fwk.StorageClass, makeClass("fast", driverName), makeClass("fast", driverName), skipped},
		"own claim added":       {"the pod waits for it", fwk.PersistentVolumeClaim, nil, makePVC("a", "fast", "1Gi"), queued},
		"own claim changed":     {"most changes may help", fwk.PersistentVolumeClaim, makePVC("a", "fast", "1Gi"), makePVC("a", "fast", "1Gi"), queued},
		"other claim added":     {"it takes space, it gives none", fwk.PersistentVolumeClaim, nil, makePVC("x", "fast", "1Gi"), skipped},
		"hold given back":       {"the selection of another claim ended", fwk.PersistentVolumeClaim, withNode(makePVC("x", "fast", "1Gi"), "n1"), makePVC("x", "fast", "1Gi"), queued},
		"hold of a shared pool": {"of another class on the same pool", fwk.PersistentVolumeClaim, withNode(makePVC("x", "slow", "1Gi"), "n1"), makePVC("x", "slow", "1Gi"), queued},
		"hold of another pool":  {"of a class that shares nothing", fwk.PersistentVolumeClaim, withNode(makePVC("x", "odd", "1Gi"), "n1"), makePVC("x", "odd", "1Gi"), skipped},
		"held claim deleted":    {"its hold ended", fwk.PersistentVolumeClaim, withNode(makePVC("x", "fast", "1Gi"), "n1"), nil, queued},
		"unheld claim deleted":  {"it held nothing", fwk.PersistentVolumeClaim, makePVC("x", "fast", "1Gi"), nil, skipped},
		"volume added":          {"one of the class", fwk.PersistentVolume, nil, makePV("pv", "fast", "1Gi", ""), queued},
		"other volume added":    {"one of another class", fwk.PersistentVolume, nil, makePV("pv", "odd", "1Gi", ""), skipped},
		"reserved volume added": {"it names the pod's claim", fwk.PersistentVolume, nil, reserved, queued},
		"volume deleted":        {"a hold may end with it", fwk.PersistentVolume, makePV("pv", "slow", "1Gi", ""), nil, queued},
		"node added":            {"a new place", fwk.Node, nil, makeNode("n3"), queued},
		"CSINode added":         {"drivers appear", fwk.CSINode, nil, csiNode(nil), queued},
		"limit raised":          {"more volumes fit", fwk.CSINode, csiNode(ptr.To[int32](1)), csiNode(ptr.To[int32](2)), queued},
		"limit removed":         {"any number fits (upstream skips)", fwk.CSINode, csiNode(ptr.To[int32](1)), csiNode(nil), queued},
		"limit lowered":         {"fewer fit", fwk.CSINode, csiNode(ptr.To[int32](2)), csiNode(ptr.To[int32](1)), skipped},
		"driver registered":     {"it was missing", fwk.CSINode, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, csiNode(nil), queued},
		"capacity not tracked":  {"nothing is checked any more, for claims too (upstream: inline volumes only)", fwk.CSIDriver, makeDriver(driverName), driver(func(s *storagev1.CSIDriverSpec) { s.StorageCapacity = nil }), queued},
		"driver touched":        {"nothing that is read", fwk.CSIDriver, makeDriver(driverName), makeDriver(driverName), skipped},
		"capacity added":        {"space appears", fwk.CSIStorageCapacity, nil, makeCapacity("fast", "n1", "8Gi", 5), queued},
		"capacity grew":         {"more space", fwk.CSIStorageCapacity, makeCapacity("fast", "n1", "8Gi", 5), makeCapacity("fast", "n1", "9Gi", 5), queued},
		"capacity shrank":       {"less space", fwk.CSIStorageCapacity, makeCapacity("fast", "n1", "8Gi", 5), makeCapacity("fast", "n1", "7Gi", 5), skipped},
		"allocations passed":    {"holds that it did not contain end, even where it shrank", fwk.CSIStorageCapacity, makeCapacity("fast", "n1", "8Gi", 5), makeCapacity("fast", "n1", "7Gi", 6), queued},
		"other capacity grew":   {"of a class that shares nothing", fwk.CSIStorageCapacity, makeCapacity("odd", "n9", "8Gi", 5), makeCapacity("odd", "n9", "9Gi", 5), skipped},
		"pod with volumes left": {"its volumes, or its reservation", fwk.AssignedPod, makePod("gone", "x"), nil, queued},
		"pod without any left":  {"it held nothing", fwk.AssignedPod, makePod("gone"), nil, skipped},
	}
	pod := makePod("p", "a")
	r := dynamicCluster(t, makePVC("a", "fast", "1Gi"), makeClass("odd", driverName), pod).start(t.Context())
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := r.hint(tc.resource, pod, tc.old, tc.new); got != tc.want {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

// TestHintBringsTheCacheUpToDate: the queue may hear of an event before the
// cache's own handler does. A pod woken by it must meet the new state.
func TestHintBringsTheCacheUpToDate(t *testing.T) {
	pod := makePod("p", "a")
	r := dynamicCluster(t, makePVC("a", "fast", "30Gi"), pod).start(t.Context())
	if _, refused := r.judge(pod); len(refused) != 2 {
		t.Fatalf("30 GiB fit on no node, but %v were refused", refused)
	}
	// The store has the object; no handler has run, as for a slow listener.
	store := r.factory.Storage().V1().CSIStorageCapacities().Informer().GetStore()
	before, after := makeCapacity("fast", "n2", "20Gi", 5), makeCapacity("fast", "n2", "40Gi", 6)
	if err := store.Update(after); err != nil {
		t.Fatal(err)
	}
	if _, refused := r.judge(pod); len(refused) != 2 {
		t.Fatal("the cache saw what no event announced: this test shows nothing")
	}
	if h := r.hint(fwk.CSIStorageCapacity, pod, before, after); h != fwk.Queue {
		t.Fatal("the pod is not woken")
	}
	if _, refused := r.judge(pod); len(refused) != 1 {
		t.Errorf("the woken pod met the old state: %v", refused)
	}
	// A deletion comes as a tombstone where the watch was interrupted.
	if err := store.Delete(after); err != nil {
		t.Fatal(err)
	}
	r.hint(fwk.CSIStorageCapacity, pod, cache.DeletedFinalStateUnknown{Key: "berth-system/fast-n2", Obj: after}, nil)
	if _, refused := r.judge(pod); len(refused) != 2 {
		t.Errorf("a deleted object still counts: %v", refused)
	}
}
