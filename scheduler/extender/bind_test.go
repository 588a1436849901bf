package extender

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestBind: a pod with nothing, a volume that is there and one to be made comes to
// its node, and a second bind is the same bind.
func TestBind(t *testing.T) {
	free := fakeapi.PV("free", "local", "2Gi", "n2")
	pod, plain := fakeapi.Pod("web", "sta", "dyn"), fakeapi.Pod("plain")
	r := start(t, pool(t, map[string]string{"n1": "8Gi", "n2": "8Gi"}, fakeapi.Class("local", volume.NoProvisioner), free,
		fakeapi.PVC("sta", "local", "1Gi"), fakeapi.PVC("dyn", "fast", "1Gi"), pod, plain))
	r.PVController(t.Context())
	for _, p := range []*corev1.Pod{pod, plain} {
		for i := range 2 {
			if err := r.bind(p, "n2"); err != nil || r.nodeOf(p) != "n2" {
				t.Fatalf("bind %d of %s: %v, on node %q", i+1, p.Name, err, r.nodeOf(p))
			}
		}
		if err := r.bind(p, "n1"); err == nil || !strings.Contains(err.Error(), "is bound to node n2 already") {
			t.Errorf("a bind of %s to another node: %v", p.Name, err)
		}
	}
	if ref := r.Volume("free").Spec.ClaimRef; ref == nil || ref.Name != "sta" {
		t.Errorf("the volume is reserved for %v", ref)
	}
	if got := r.Claim("dyn").Annotations[volume.AnnSelectedNode]; got != "n2" {
		t.Errorf("the claim's node is %q", got)
	}
	r.seen("no promise is left", func() bool {
		_, first := r.promises.node(pod.UID)
		_, second := r.promises.node(plain.UID)
		return !first && !second && r.Promises() == 0
	})
	if err := r.bind(pod, "n1"); err == nil || !strings.Contains(err.Error(), "is bound to node n2 already") {
		t.Errorf("and by what the informer says: %v", err)
	}
}

// TestNeverOverCommitted: of many binds at once only so many succeed as there is
// room, by capacity and by attach limit; the others promise and write nothing.
func TestNeverOverCommitted(t *testing.T) {
	const pods, fit = 20, 3
	for name, full := range map[string]func(*testing.T) *fakeapi.Cluster{
		"capacity": func(t *testing.T) *fakeapi.Cluster { return pool(t, map[string]string{"n1": "3Gi"}) },
		"attach": func(t *testing.T) *fakeapi.Cluster {
			return pool(t, map[string]string{"n1": "300Gi"}, limited("n1", fit))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := full(t)
			var all []*corev1.Pod
			for i := range pods {
				all = append(all, fakeapi.Pod(fmt.Sprintf("p%d", i), fmt.Sprintf("c%d", i)))
				c.Put(fakeapi.PVC(fmt.Sprintf("c%d", i), "fast", "1Gi"))
				c.Put(all[i])
			}
			r := start(t, c)
			r.PVController(t.Context())
			errs := make([]error, pods)
			var group sync.WaitGroup
			for i, pod := range all {
				group.Go(func() { errs[i] = r.bind(pod, "n1") })
			}
			group.Wait()
			bound := 0
			for i, pod := range all {
				selected := r.Claim(pod.Spec.Volumes[0].Name).Annotations[volume.AnnSelectedNode]
				switch {
				case errs[i] == nil && r.nodeOf(pod) == "n1":
					bound++
				case errs[i] == nil || r.nodeOf(pod) != "" || selected != "" || !strings.Contains(errs[i].Error(), "no longer fits on node n1"):
					t.Errorf("%s: %v; on node %q, its claim's node %q", pod.Name, errs[i], r.nodeOf(pod), selected)
				}
			}
			if bound != fit {
				t.Errorf("%d pods are bound, and %d fit", bound, fit)
			}
		})
	}
}

// TestKept: where the budget ends first the promise stays, the pod has no other
// choice, others do not get its bytes, and the next bind finishes.
func TestKept(t *testing.T) {
	pod, other := fakeapi.Pod("web", "a"), fakeapi.Pod("other", "b")
	r := start(t, pool(t, map[string]string{"n1": "8Gi", "n2": "8Gi"}, fakeapi.PVC("a", "fast", "5Gi"), fakeapi.PVC("b", "fast", "5Gi"), pod, other))
	for range 2 {
		err := r.bindInVain(pod)
		if err == nil || !strings.Contains(err.Error(), "what was promised is kept, and the next bind goes on: claim default/a: waiting for its volume to be provisioned on node n1") {
			t.Fatalf("nobody provisions: %v", err)
		}
		if n := r.Promises(); n != 1 || r.nodeOf(pod) != "" {
			t.Fatalf("%d promises, pod on %q", n, r.nodeOf(pod))
		}
	}
	v := r.verdicts(pod, "n1", "n2")
	if v["n1"] != "" || v["n2"] == "" {
		t.Errorf("the pod's claim is selected for n1, and the nodes say %v", v)
	}
	if err := r.bind(other, "n1"); err == nil || !strings.Contains(err.Error(), "no longer fits") {
		t.Errorf("the same bytes were promised twice: %v", err)
	}
	if err := r.bind(pod, "n2"); err == nil || !strings.Contains(err.Error(), "no longer fits on node n2") {
		t.Errorf("a bind elsewhere: %v", err)
	}
	// Its own budget ends a bind as its caller does.
	budget(10 * time.Millisecond)(r)
	if err := r.bind(pod, "n1"); err == nil || !strings.Contains(err.Error(), "not ready on node n1 after 10ms; what was promised is kept") || r.Promises() != 1 {
		t.Fatalf("the budget ends: %v, %d promises", err, r.Promises())
	}
	budget(eventually)(r)
	r.PVController(t.Context())
	// The claim is selected already: the controller sees its next change.
	r.Put(r.Claim("a"))
	if err := r.bind(pod, "n1"); err != nil || r.nodeOf(pod) != "n1" {
		t.Fatalf("provisioned meanwhile: %v, on node %q", err, r.nodeOf(pod))
	}
}

// TestPromiseEnds: what ends a promise that was kept, and that its bytes are then
// another pod's.
func TestPromiseEnds(t *testing.T) {
	cases := map[string]struct {
		reason string
		end    func(r *rig, pod *corev1.Pod)
		// held: the claim keeps its bytes, although the pod has no promise.
		held bool
	}{
		"pod deleted": {"the claim is selected, and its bytes are its own", func(r *rig, pod *corev1.Pod) { r.Delete(pod) }, true},
		"pod replaced": {"by a namesake, without a deletion in between", func(r *rig, pod *corev1.Pod) {
			again := pod.DeepCopy()
			again.UID = "uid-again"
			r.Put(again)
		}, true},
		"pod elsewhere": {"somebody bound it by hand", func(r *rig, pod *corev1.Pod) {
			pod = pod.DeepCopy()
			pod.Spec.NodeName = "n2"
			r.Put(pod)
		}, true},
		"claim deleted": {"nobody waits for it", func(r *rig, _ *corev1.Pod) { r.Delete(r.Claim("a")) }, false},
		"given back": {"the provisioner found no room", func(r *rig, _ *corev1.Pod) {
			claim := r.Claim("a")
			delete(claim.Annotations, volume.AnnSelectedNode)
			r.Put(claim)
		}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod, other := fakeapi.Pod("web", "a"), fakeapi.Pod("other", "b")
			r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "5Gi"), fakeapi.PVC("b", "fast", "5Gi"), pod, other))
			if err := r.bindInVain(pod); err == nil || r.Promises() != 1 {
				t.Fatalf("setup: %v, %d promises", err, r.Promises())
			}
			tc.end(r, pod)
			r.seen(tc.reason, func() bool { return r.Promises() == 0 })
			if tc.held {
				if v := r.verdicts(other, "n1"); v["n1"] == "" {
					t.Error("the bytes of a claim that is being provisioned are free")
				}
				return
			}
			r.seen("the bytes are free", func() bool { return r.verdicts(other, "n1")["n1"] == "" })
		})
	}
}

// TestPromiseEndsByTime: a reserved volume that the PV controller does not take up is
// given back when no bind comes for its pod any more; a selected claim never is.
func TestPromiseEndsByTime(t *testing.T) {
	for name, tc := range map[string]struct {
		claim string
		left  int
	}{"a volume": {"sta", 0}, "a claim that is selected": {"dyn", 1}} {
		t.Run(name, func(t *testing.T) {
			pod := fakeapi.Pod("web", tc.claim)
			fake, onFake := fakeTime()
			r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.Class("local", volume.NoProvisioner), fakeapi.PV("free", "local", "2Gi", "n1"),
				fakeapi.PVC("sta", "local", "1Gi"), fakeapi.PVC("dyn", "fast", "1Gi"), pod), onFake)
			if err := r.bindInVain(pod); err == nil || r.Promises() != 1 {
				t.Fatalf("setup: %v, %d promises", err, r.Promises())
			}
			fake.Step(keptFor - time.Second)
			if n := r.Promises(); n != 1 {
				t.Fatalf("%d promises a second before their time", n)
			}
			// A second attempt: what the first reserved is the promise's all the same.
			if err := r.bindInVain(pod); err == nil || r.Promises() != 1 {
				t.Fatalf("setup: %v, %d promises", err, r.Promises())
			}
			for range 3 {
				fake.Step(keptFor)
			}
			r.seen("the time is over", func() bool { return r.Promises() == tc.left })
			if tc.left == 0 {
				r.seen("the volume is given back", func() bool { return r.Volume("free").Spec.ClaimRef == nil })
				return
			}
			// Provisioned, and still no bind comes: nothing is tied any more.
			claim := r.Claim("dyn")
			pv := fakeapi.Provisioned(claim, 100)
			r.Put(pv)
			r.Put(fakeapi.BoundTo(claim, pv.Name))
			r.seen("the promise ends", func() bool {
				fake.Step(keptFor)
				return r.Promises() == 0
			})
		})
	}
}

// TestBindRefuses: what is wrong with a bind, and that nothing is promised or written.
func TestBindRefuses(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	leaving := fakeapi.Pod("leaving")
	leaving.DeletionTimestamp = new(metav1.Now())
	cases := map[string]struct {
		reason string
		args   extenderv1.ExtenderBindingArgs
		want   string
	}{
		"gone":         {"not in the API either", extenderv1.ExtenderBindingArgs{PodName: "no", PodNamespace: "default", PodUID: "x", Node: "n1"}, `pods "no" not found`},
		"replaced":     {"a namesake is another pod", extenderv1.ExtenderBindingArgs{PodName: "web", PodNamespace: "default", PodUID: "x", Node: "n1"}, "it was replaced"},
		"leaving":      {"it would never start", extenderv1.ExtenderBindingArgs{PodName: "leaving", PodNamespace: "default", PodUID: leaving.UID, Node: "n1"}, "is being deleted"},
		"unknown node": {"nothing to judge", extenderv1.ExtenderBindingArgs{PodName: "web", PodNamespace: "default", PodUID: pod.UID, Node: "n9"}, "node n9 is not known"},
		"too small":    {"another took the room", extenderv1.ExtenderBindingArgs{PodName: "web", PodNamespace: "default", PodUID: pod.UID, Node: "n2"}, "no longer fits on node n2: node(s) did not have enough free storage"},
	}
	r := start(t, pool(t, map[string]string{"n1": "8Gi", "n2": "1Gi"}, fakeapi.PVC("a", "fast", "5Gi"), pod, leaving))
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := r.Bind(t.Context(), tc.args)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
			if n := r.Promises(); n != 0 || r.nodeOf(pod) != "" || r.Claim("a").Annotations[volume.AnnSelectedNode] != "" {
				t.Errorf("%d promises, pod on %q, claim on %q", n, r.nodeOf(pod), r.Claim("a").Annotations[volume.AnnSelectedNode])
			}
		})
	}
}

// TestBindFails: the API refuses, or does not answer; what is then left, and that
// the next bind ends well.
func TestBindFails(t *testing.T) {
	lost := errors.New("connection reset")
	cases := map[string]struct {
		reason, resource string
		fail             error
	}{
		"selecting is refused":  {"nothing is promised", "persistentvolumeclaims", apierrors.NewForbidden(volume0, "a", lost)},
		"selecting is lost":     {"the pod has no promise; the cache holds what may be written", "persistentvolumeclaims", lost},
		"binding is refused":    {"the volumes are there, and the promise is at its end", "bindings", apierrors.NewForbidden(volume0, "web", lost)},
		"binding is unanswered": {"the pod tells that it did not happen", "bindings", lost},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := fakeapi.Pod("web", "a")
			r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "5Gi"), pod))
			r.PVController(t.Context())
			r.BeforePatch(func(resource, _ string) error {
				if resource == tc.resource {
					return tc.fail
				}
				return nil
			})
			if err := r.bind(pod, "n1"); err == nil || !errors.Is(err, tc.fail) {
				t.Errorf("the error is %v", err)
			}
			if n := r.Promises(); n != 0 || r.nodeOf(pod) != "" {
				t.Errorf("%s: %d promises, pod on %q", tc.reason, n, r.nodeOf(pod))
			}
			r.BeforePatch(nil)
			if err := r.bind(pod, "n1"); err != nil || r.nodeOf(pod) != "n1" {
				t.Errorf("the next bind: %v, on node %q", err, r.nodeOf(pod))
			}
		})
	}
}

// volume0 is the resource of a refusal whose text does not matter.
var volume0 = corev1.Resource("things")

// TestCallerGone: kube-scheduler ends in mid-bind; the promise is kept for its
// successor.
func TestCallerGone(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "5Gi"), pod))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	a := extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: "n1"}
	go func() { ended <- r.Bind(ctx, a) }()
	r.seen("the node is selected", func() bool { return r.Claim("a").Annotations[volume.AnnSelectedNode] == "n1" })
	// A second one waits for its turn, and goes when its caller does.
	waiting, leave := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { second <- r.Bind(waiting, a) }()
	leave()
	if err := <-second; err == nil || !errors.Is(err, context.Canceled) {
		t.Errorf("the second bind ends with %v", err)
	}
	r.seen("the informer has it", func() bool {
		pvc := r.cache.ClaimByKey("default/a")
		return pvc.Annotations[volume.AnnSelectedNode] == "n1"
	})
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "is kept") || r.Promises() != 1 {
		t.Errorf("%v, %d promises", err, r.Promises())
	}
}

// TestPlacedAtFirstSight: the first that the informer sees of a pod is that it is on its
// node; and where it never sees it, time ends what is left.
func TestPlacedAtFirstSight(t *testing.T) {
	for name, shown := range map[string]bool{"seen": true, "never seen": false} {
		t.Run(name, func(t *testing.T) {
			pod := fakeapi.Pod("web", "a")
			fake, onFake := fakeTime()
			r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "1Gi")), onFake)
			if err := r.promises.commit(pod, binding.BindPlan{Node: "n1"}); err != nil {
				t.Fatal(err)
			}
			r.promises.placed(pod.UID)
			if node, placed := r.promises.node(pod.UID); node != "n1" || !placed {
				t.Fatalf("setup: %q, %v", node, placed)
			}
			if shown {
				pod.Spec.NodeName = "n1"
				r.Put(pod)
			} else {
				fake.Step(keptFor)
			}
			r.seen("nothing is left", func() bool {
				node, _ := r.promises.node(pod.UID)
				return node == ""
			})
		})
	}
}

// TestTenancy: a pod is counted where the API has it, once, and where it is promised
// until the API says.
func TestTenancy(t *testing.T) {
	tn := newTenancy(nil)
	pod := fakeapi.Pod("web", "a")
	placed := pod.DeepCopy()
	placed.Spec.NodeName = "n2"
	over := placed.DeepCopy()
	over.Status.Phase = corev1.PodSucceeded
	where := func() string {
		var out strings.Builder
		for _, node := range []string{"n1", "n2"} {
			for p := range tn.of(node).Pods {
				out.WriteString(node + ":" + p.Name + " ")
			}
		}
		return out.String()
	}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { tn.set(pod, false) }, ""},
		{func() { tn.assume(pod, "n1") }, "n1:web "},
		{func() { tn.set(pod, false) }, "n1:web "},
		{func() { tn.assume(pod, "n2") }, "n2:web "},
		{func() { tn.forget(pod.UID) }, ""},
		{func() { tn.assume(pod, "n1") }, "n1:web "},
		{func() { tn.set(placed, false) }, "n2:web "},
		{func() { tn.forget(pod.UID) }, "n2:web "},
		{func() { tn.assume(pod, "n1") }, "n2:web "},
		{func() { tn.set(over, false) }, ""},
		{func() { tn.set(placed, false) }, "n2:web "},
		{func() { tn.set(placed, true) }, ""},
		{func() { tn.assume(pod, "n1") }, "n1:web "},
		{func() { tn.set(pod, true) }, ""},
	} {
		before := tn.of("n1").Generation + tn.of("n2").Generation
		was := where()
		if step.do(); where() != step.want {
			t.Fatalf("step %d: %q, want %q", i, where(), step.want)
		}
		if after := tn.of("n1").Generation + tn.of("n2").Generation; was != where() && after == before {
			t.Errorf("step %d changed the pods and not the generation", i)
		}
	}
	if len(tn.at)+len(tn.where)+len(tn.assumed) != 0 {
		t.Errorf("something is left: %v %v %v", tn.at, tn.where, tn.assumed)
	}
}
