package plugin

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestWaitingForgetsPodsThatAreGone: a pod may be deleted while its cycle runs,
// and a cluster autoscaler judges pods that never were. Neither is kept.
func TestWaitingForgetsPodsThatAreGone(t *testing.T) {
	pod := fakeapi.Pod("p", "a")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "1Gi"), pod).start(t.Context())
	namesake := pod.DeepCopy()
	namesake.UID = "of another life"
	for _, p := range []*corev1.Pod{fakeapi.Pod("simulated", "a"), namesake} {
		r.judge(p)
	}
	if n := len(r.plugin.waiting.needs) + len(r.plugin.waiting.index); n != 0 {
		t.Errorf("%d entries are kept of pods that the API does not have", n)
	}
	r.judge(pod)
	if r.plugin.waiting.get(pod.UID) == nil {
		t.Error("the pod that does wait is not known")
	}
}

// TestLastChoiceAmongNodesForThePod: room on a node that would not take the pod
// does not shun the one that would.
func TestLastChoiceAmongNodesForThePod(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	pod.Spec.NodeSelector = map[string]string{"disk": "yes"}
	noSchedule := []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	cases := map[string]struct {
		reason string
		change func(other *corev1.Node)
		want   []string
	}{
		"for the pod":     {"n2 has room and takes it", func(*corev1.Node) {}, []string{"n1"}},
		"cordoned":        {"n2 takes nobody", func(n *corev1.Node) { n.Spec.Unschedulable = true }, nil},
		"tainted":         {"the pod does not tolerate it", func(n *corev1.Node) { n.Spec.Taints = noSchedule }, nil},
		"of another kind": {"the pod's selector leaves it out", func(n *corev1.Node) { delete(n.Labels, "disk") }, nil},
		"taint that is mild": {"the pod may go there", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectPreferNoSchedule}}
		}, []string{"n1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			other := fakeapi.Node("n2", "disk", "yes")
			tc.change(other)
			claim := fakeapi.PVC("a", "fast", "6Gi")
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, "n1")
			r := newCluster(t, fakeapi.Node("n1", "disk", "yes"), other, fakeapi.Driver(driverName), fakeapi.Class("fast", driverName),
				fakeapi.Capacity("fast", "n1", "8Gi", 5), fakeapi.Capacity("fast", "n2", "20Gi", 5), claim, pod).start(t.Context())
			r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 1 })
			r.Put(fakeapi.PVC("a", "fast", "6Gi"))
			// No claim is selected any more when n2 stops to be refused for it.
			var refused map[string]string
			r.seen(func() bool { _, refused = r.judge(pod); _, elsewhere := refused["n2"]; return !elsewhere })
			if diff := cmp.Diff(tc.want, keys(refused)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestReserveTwiceHoldsOnce: a second Reserve without Unreserve between moves
// the hold; the first would be held for ever.
func TestReserveTwiceHoldsOnce(t *testing.T) {
	pod := fakeapi.Pod("p", "a")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "6Gi"), pod).start(t.Context())
	cy, refused := r.judge(pod)
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	for _, node := range []string{"n1", "n2"} {
		if s := cy.reserve(node); !s.IsSuccess() {
			t.Fatalf("reserving on %s: %v", node, s)
		}
	}
	cy.unreserve()
	if _, refused := r.judge(pod); len(refused) > 0 {
		t.Errorf("something is still held: %v", refused)
	}
}

// TestHintObservesAnEventOnce: the queue asks a hint for every pod that waits;
// the cache does the work of the event for the first.
func TestHintObservesAnEventOnce(t *testing.T) {
	var pods []*corev1.Pod
	c := dynamicCluster(t, fakeapi.PVC("a", "fast", "30Gi"))
	for i := range 3 {
		pods = append(pods, fakeapi.Pod(fmt.Sprintf("p%d", i), "a"))
		c.Put(pods[i])
	}
	r := c.start(t.Context())
	before, after := fakeapi.PV("pv", "fast", "1Gi", ""), fakeapi.PV("pv", "fast", "2Gi", "")
	r.hint(fwk.PersistentVolume, pods[0], before, after)
	view := r.plugin.cache.Snapshot()
	for _, pod := range pods {
		if h := r.hint(fwk.PersistentVolume, pod, before, after); h != fwk.Queue {
			t.Errorf("pod %s is not woken", pod.Name)
		}
	}
	if r.plugin.cache.Snapshot() != view {
		t.Error("the event was worked on once a pod")
	}
	r.hint(fwk.PersistentVolume, pods[0], after, before)
	if r.plugin.cache.Snapshot() == view {
		t.Error("another event was not worked on: this test shows nothing")
	}
}

// TestNodeInfoWithoutNode: the framework keeps the pods of a node that is gone
// for a moment.
func TestNodeInfoWithoutNode(t *testing.T) {
	pod := fakeapi.Pod("p", "a")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "1Gi"), pod).start(t.Context())
	cy, _ := r.judge(pod)
	if s := r.plugin.Filter(t.Context(), cy.state, pod, framework.NewNodeInfo()); s.Code() != fwk.Error {
		t.Errorf("got %v, want an error", s)
	}
}
