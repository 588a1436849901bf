package plugin

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// hint asks the registered hint of a resource, by the action that the objects
// make: whether it was registered for it at all matters as much as its answer.
func (r *rig) hint(resource fwk.EventResource, pod *corev1.Pod, oldObj, newObj any) fwk.QueueingHint {
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
	withNode := func(pvc *corev1.PersistentVolumeClaim, node string) *corev1.PersistentVolumeClaim {
		metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnSelectedNode, node)
		return pvc
	}
	driver := func(change func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
		d := fakeapi.Driver(driverName)
		change(&d.Spec)
		return d
	}
	csiNode := func(count *int32) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driverName, Allocatable: &storagev1.VolumeNodeResources{Count: count}},
		}}}
	}
	reserved := fakeapi.PV("pv", "other", "1Gi", "")
	reserved.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "a"}
	tainted := func(name, key string) *corev1.Node {
		n := fakeapi.Node(name)
		n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
		return n
	}
	otherNode := func(count int32) *storagev1.CSINode {
		n := csiNode(&count)
		n.Spec.Drivers[0].Name = "other.driver"
		return n
	}
	migratedNode := csiNode(nil)
	migratedNode.Annotations = map[string]string{volume.AnnMigratedPlugins: "kubernetes.io/aws-ebs"}
	claimed := func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		pv = pv.DeepCopy()
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "x", UID: "x"}
		return pv
	}
	labelled, annotated := fakeapi.PV("pv", "fast", "1Gi", ""), fakeapi.PV("pv", "fast", "1Gi", "")
	labelled.Labels = map[string]string{"a": "b"}
	annotated.Annotations = map[string]string{"a": "b"}
	bounded := func(size, maximum string) *storagev1.CSIStorageCapacity {
		o := fakeapi.Capacity("fast", "n1", "8Gi", 5)
		o.Capacity = nil
		if size != "" {
			o.Capacity = new(resource.MustParse(size))
		}
		if maximum != "" {
			o.MaximumVolumeSize = new(resource.MustParse(maximum))
		}
		return o
	}
	cases := map[string]struct {
		reason   string
		resource fwk.EventResource
		old, new any
		want     fwk.QueueingHint
	}{
		"class added":           {"the class that the pod asks for", fwk.StorageClass, nil, fakeapi.Class("fast", driverName), queued},
		"other class added":     {"a class that no claim of the pod names", fwk.StorageClass, nil, fakeapi.Class("odd", driverName), skipped},
		"topologies changed":    {"other nodes are allowed", fwk.StorageClass, fakeapi.Class("fast", driverName, "zone", "z1"), fakeapi.Class("fast", driverName, "zone", "z2"), queued},
		"class touched":         {"nothing that is read", fwk.StorageClass, fakeapi.Class("fast", driverName), fakeapi.Class("fast", driverName), skipped},
		"own claim added":       {"the pod waits for it", fwk.PersistentVolumeClaim, nil, fakeapi.PVC("a", "fast", "1Gi"), queued},
		"own claim changed":     {"most changes may help", fwk.PersistentVolumeClaim, fakeapi.PVC("a", "fast", "1Gi"), fakeapi.PVC("a", "fast", "1Gi"), queued},
		"other claim added":     {"it takes space, it gives none", fwk.PersistentVolumeClaim, nil, fakeapi.PVC("x", "fast", "1Gi"), skipped},
		"hold given back":       {"the selection of another claim ended", fwk.PersistentVolumeClaim, withNode(fakeapi.PVC("x", "fast", "1Gi"), "n1"), fakeapi.PVC("x", "fast", "1Gi"), queued},
		"hold of a shared pool": {"of another class on the same pool", fwk.PersistentVolumeClaim, withNode(fakeapi.PVC("x", "slow", "1Gi"), "n1"), fakeapi.PVC("x", "slow", "1Gi"), queued},
		"hold of another pool":  {"of a class that shares nothing", fwk.PersistentVolumeClaim, withNode(fakeapi.PVC("x", "odd", "1Gi"), "n1"), fakeapi.PVC("x", "odd", "1Gi"), skipped},
		"held claim deleted":    {"its hold ended", fwk.PersistentVolumeClaim, withNode(fakeapi.PVC("x", "fast", "1Gi"), "n1"), nil, queued},
		"unheld claim deleted":  {"it held nothing", fwk.PersistentVolumeClaim, fakeapi.PVC("x", "fast", "1Gi"), nil, skipped},
		"volume added":          {"one of the class", fwk.PersistentVolume, nil, fakeapi.PV("pv", "fast", "1Gi", ""), queued},
		"other volume added":    {"one of another class", fwk.PersistentVolume, nil, fakeapi.PV("pv", "odd", "1Gi", ""), skipped},
		"reserved volume added": {"it names the pod's claim", fwk.PersistentVolume, nil, reserved, queued},
		"volume deleted":        {"a hold may end with it", fwk.PersistentVolume, fakeapi.PV("pv", "slow", "1Gi", ""), nil, queued},
		"node with room added":  {"a new place, whose capacity is known already", fwk.Node, nil, fakeapi.Node("n3"), queued},
		"node without added":    {"no capacity is published there (upstream queues)", fwk.Node, nil, fakeapi.Node("n4"), skipped},
		"node gets room":        {"its label is what the capacity is for", fwk.Node, fakeapi.Node("x"), fakeapi.Node("x", volume.LabelHostname, "n3"), queued},
		"node touched":          {"it had room before (upstream queues)", fwk.Node, fakeapi.Node("n1"), fakeapi.Node("n1", "a", "b"), skipped},
		"startup taint gone":    {"it stood for the driver", fwk.Node, tainted("n4", driverName+"/agent-not-ready"), fakeapi.Node("n4"), queued},
		"node deleted":          {"nothing was shunned for it", fwk.Node, fakeapi.Node("n4"), nil, skipped},
		"other taint gone":      {"it is no matter of volumes", fwk.Node, tainted("n4", "maintenance"), fakeapi.Node("n4"), skipped},
		"CSINode added":         {"drivers appear", fwk.CSINode, nil, csiNode(nil), queued},
		"limit raised":          {"more volumes fit", fwk.CSINode, csiNode(ptr.To[int32](1)), csiNode(ptr.To[int32](2)), queued},
		"limit removed":         {"any number fits (upstream skips)", fwk.CSINode, csiNode(ptr.To[int32](1)), csiNode(nil), queued},
		"limit lowered":         {"fewer fit", fwk.CSINode, csiNode(ptr.To[int32](2)), csiNode(ptr.To[int32](1)), skipped},
		"driver registered":     {"it was missing", fwk.CSINode, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, csiNode(nil), queued},
		"other driver's limit":  {"no volume of the pod is its own (upstream queues)", fwk.CSINode, otherNode(1), otherNode(2), skipped},
		"plugins migrated":      {"volumes of plugins are elsewhere then", fwk.CSINode, csiNode(nil), migratedNode, queued},
		"volume detached":       {"there is a place for another", fwk.VolumeAttachment, fakeapi.Attachment("pv", "n1", driverName), nil, queued},
		"other one detached":    {"of a driver that serves no volume of the pod (upstream queues)", fwk.VolumeAttachment, fakeapi.Attachment("pv", "n1", "other.driver"), nil, skipped},
		"driver not needed":     {"it need not be there first any more", fwk.CSIDriver, driver(func(s *storagev1.CSIDriverSpec) { s.PreventPodSchedulingIfMissing = new(true) }), fakeapi.Driver(driverName), queued},
		"driver deleted":        {"nothing is checked any more", fwk.CSIDriver, fakeapi.Driver(driverName), nil, queued},
		"other driver deleted":  {"it serves no volume of the pod", fwk.CSIDriver, fakeapi.Driver("other.driver"), nil, skipped},
		"driver added":          {"more is checked, not less", fwk.CSIDriver, nil, fakeapi.Driver(driverName), skipped},
		"volume freed":          {"it can be taken now", fwk.PersistentVolume, claimed(fakeapi.PV("pv", "fast", "1Gi", "")), fakeapi.PV("pv", "fast", "1Gi", ""), queued},
		"volume relabelled":     {"a selector may match now", fwk.PersistentVolume, fakeapi.PV("pv", "fast", "1Gi", ""), labelled, queued},
		"volume touched":        {"nothing that is read (upstream queues)", fwk.PersistentVolume, fakeapi.PV("pv", "fast", "1Gi", ""), annotated, skipped},
		"claimed one touched":   {"it is another's (upstream queues)", fwk.PersistentVolume, claimed(fakeapi.PV("pv", "fast", "1Gi", "")), claimed(labelled), skipped},
		"too small to help":     {"not even all of it would do (upstream queues)", fwk.CSIStorageCapacity, fakeapi.Capacity("fast", "n1", "100Mi", 5), fakeapi.Capacity("fast", "n1", "900Mi", 6), skipped},
		"capacity deleted":      {"the one that lagged may be gone", fwk.CSIStorageCapacity, fakeapi.Capacity("slow", "n1", "8Gi", 5), nil, queued},
		"capacity not tracked":  {"nothing is checked any more, for claims too (upstream: inline volumes only)", fwk.CSIDriver, fakeapi.Driver(driverName), driver(func(s *storagev1.CSIDriverSpec) { s.StorageCapacity = nil }), queued},
		"driver touched":        {"nothing that is read", fwk.CSIDriver, fakeapi.Driver(driverName), fakeapi.Driver(driverName), skipped},
		"capacity added":        {"space appears", fwk.CSIStorageCapacity, nil, fakeapi.Capacity("fast", "n1", "8Gi", 5), queued},
		"capacity grew":         {"more space", fwk.CSIStorageCapacity, fakeapi.Capacity("fast", "n1", "8Gi", 5), fakeapi.Capacity("fast", "n1", "9Gi", 5), queued},
		"capacity shrank":       {"less space", fwk.CSIStorageCapacity, fakeapi.Capacity("fast", "n1", "8Gi", 5), fakeapi.Capacity("fast", "n1", "7Gi", 5), skipped},
		"allocations passed":    {"holds that it did not contain end, even where it shrank", fwk.CSIStorageCapacity, fakeapi.Capacity("fast", "n1", "8Gi", 5), fakeapi.Capacity("fast", "n1", "7Gi", 6), queued},
		"maximum lifted":        {"what bounded volumes is gone", fwk.CSIStorageCapacity, bounded("8Gi", "1Gi"), bounded("8Gi", ""), queued},
		"capacity lifted":       {"only the size of one volume is bounded now", fwk.CSIStorageCapacity, bounded("8Gi", "9Gi"), bounded("", "9Gi"), queued},
		"nothing published":     {"an object without figures offers nothing", fwk.CSIStorageCapacity, bounded("8Gi", "9Gi"), bounded("", ""), skipped},
		"maximum grew":          {"one volume may be larger", fwk.CSIStorageCapacity, bounded("8Gi", "2Gi"), bounded("8Gi", "3Gi"), queued},
		"maximum shrank":        {"one volume must be smaller", fwk.CSIStorageCapacity, bounded("8Gi", "3Gi"), bounded("8Gi", "2Gi"), skipped},
		"other capacity grew":   {"of a class that shares nothing", fwk.CSIStorageCapacity, fakeapi.Capacity("odd", "n9", "8Gi", 5), fakeapi.Capacity("odd", "n9", "9Gi", 5), skipped},
		"pod with volumes left": {"its volumes, or its reservation", fwk.AssignedPod, fakeapi.Pod("gone", "x"), nil, queued},
		"pod of a driver left":  {"a place to attach is free", fwk.AssignedPod, fakeapi.Pod("gone", "same"), nil, queued},
		"pod of another left":   {"its driver serves no volume of the pod (upstream queues)", fwk.AssignedPod, fakeapi.Pod("gone", "elsewhere"), nil, skipped},
		"pod without any left":  {"it held nothing", fwk.AssignedPod, fakeapi.Pod("gone"), nil, skipped},
	}
	pod := fakeapi.Pod("p", "a")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "1Gi"), fakeapi.Class("odd", driverName), fakeapi.Capacity("fast", "n3", "8Gi", 5),
		fakeapi.Class("elsewhere", "other.driver"), fakeapi.PVC("elsewhere", "elsewhere", "1Gi"), fakeapi.PVC("same", "odd", "1Gi"), pod).start(t.Context())
	for _, judged := range []bool{false, true} {
		if judged {
			// What PreFilter noted is what is read afresh for a pod never judged.
			r.judge(pod)
		}
		for name, tc := range cases {
			t.Run(fmt.Sprintf("%s, judged %t", name, judged), func(t *testing.T) {
				if got := r.hint(tc.resource, pod, tc.old, tc.new); got != tc.want {
					t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
				}
				if judged && tc.want == queued && !r.near(tc.resource, pod, tc.old, tc.new) {
					t.Errorf("%s: the hint wakes the pod, but would not be asked for it", tc.reason)
				}
			})
		}
	}
}

// near reports whether the queue would ask the hint for the pod where it narrows.
func (r *rig) near(resource fwk.EventResource, pod *corev1.Pod, oldObj, newObj any) bool {
	r.t.Helper()
	events, err := r.plugin.EventsToRegister(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range events {
		if e.Event.Resource != resource {
			continue
		}
		if e.PreQueueingHintFn == nil {
			return true
		}
		got, err := e.PreQueueingHintFn(klog.FromContext(r.ctx), oldObj, newObj)
		if err != nil {
			r.t.Fatal(err)
		}
		return got.AllPods || slices.Contains(got.Pods, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
	return false
}

// TestNarrowing: an event of a class, claim, volume or driver that no pod waits
// for is asked about no pod.
func TestNarrowing(t *testing.T) {
	one, two, lost := fakeapi.Pod("one", "a"), fakeapi.Pod("two", "b"), fakeapi.Pod("lost", "missing")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "30Gi"), fakeapi.PVC("b", "elsewhere", "30Gi"), fakeapi.Class("elsewhere", "other.driver"), one, two, lost).start(t.Context())
	for _, pod := range []*corev1.Pod{one, two, lost} {
		r.judge(pod)
	}
	cases := map[string]struct {
		reason   string
		resource fwk.EventResource
		obj      any
		want     []string
	}{
		"class":          {"pods of the class", fwk.StorageClass, fakeapi.Class("fast", driverName), []string{"lost", "one"}},
		"own claim":      {"the pod of the claim", fwk.PersistentVolumeClaim, fakeapi.PVC("b", "elsewhere", "1Gi"), []string{"lost", "two"}},
		"capacity":       {"pods of a class on the pool", fwk.CSIStorageCapacity, fakeapi.Capacity("slow", "n1", "8Gi", 6), []string{"lost", "one"}},
		"other capacity": {"nobody waits for the class", fwk.CSIStorageCapacity, fakeapi.Capacity("odd", "n7", "8Gi", 6), []string{"lost"}},
		"volume":         {"pods of the class", fwk.PersistentVolume, fakeapi.PV("pv", "elsewhere", "1Gi", ""), []string{"lost", "two"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := []string{}
			for _, pod := range []*corev1.Pod{lost, one, two} {
				if r.near(tc.resource, pod, nil, tc.obj) {
					got = append(got, pod.Name)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
	r.plugin.waiting.forget(lost.UID)
	r.plugin.waiting.forget(one.UID)
	r.plugin.waiting.forget(two.UID)
	if n := len(r.plugin.waiting.index) + len(r.plugin.waiting.needs); n != 0 {
		t.Errorf("%d entries are kept of pods that are forgotten", n)
	}
}

// TestHintBringsTheCacheUpToDate: the queue may hear of an event before the
// cache's own handler does. A pod woken by it must meet the new state.
func TestHintBringsTheCacheUpToDate(t *testing.T) {
	pod := fakeapi.Pod("p", "a")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "30Gi"), pod).start(t.Context())
	if _, refused := r.judge(pod); len(refused) != 2 {
		t.Fatalf("30 GiB fit on no node, but %v were refused", refused)
	}
	// The store has the object; no handler has run, as for a slow listener.
	store := r.Factory.Storage().V1().CSIStorageCapacities().Informer().GetStore()
	before, after := fakeapi.Capacity("fast", "n2", "20Gi", 5), fakeapi.Capacity("fast", "n2", "40Gi", 6)
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
