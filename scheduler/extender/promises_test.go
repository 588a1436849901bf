package extender

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestNoMomentUncounted: from its promise to what the informer says of it a pod is
// counted on its node at every moment, else another could take its place there.
func TestNoMomentUncounted(t *testing.T) {
	const pods = 100
	r := start(t, pool(t, map[string]string{"n1": "8Gi"}))
	counted := func() map[types.UID]bool {
		out := map[types.UID]bool{}
		for p := range r.tenancy.of("n1").Pods {
			out[p.UID] = true
		}
		return out
	}
	var all []*corev1.Pod
	for i := range pods {
		pod := fakeapi.Pod(fmt.Sprintf("p%d", i))
		if err := r.promises.commit(pod, binding.BindPlan{Node: "n1"}); err != nil {
			t.Fatal(err)
		}
		r.promises.placed(pod.UID)
		pod.Spec.NodeName = "n1"
		all = append(all, pod)
	}
	go func() {
		for _, pod := range all {
			r.Put(pod)
		}
	}()
	for promised := true; promised; {
		now := counted()
		if len(now) != pods {
			t.Fatalf("%d of %d pods are counted", len(now), pods)
		}
		_, promised = r.promises.node(all[pods-1].UID)
	}
}

// TestPromiseGivesBack: whatever ends a promise that was kept, the volume that it
// reserved and nobody took up is given back: a claim that stays tied to the node
// keeps its pod from every other one.
func TestPromiseGivesBack(t *testing.T) {
	cases := map[string]struct {
		reason string
		end    func(r *rig, pod *corev1.Pod)
		stays  bool
	}{
		"given back": {"the provisioner of the other claim found no room, and the pod must go elsewhere", func(r *rig, _ *corev1.Pod) {
			claim := r.Claim("dyn")
			delete(claim.Annotations, volume.AnnSelectedNode)
			r.Put(claim)
		}, false},
		"claim deleted": {"the other claim will be made anew, for any node", func(r *rig, _ *corev1.Pod) { r.Delete(r.Claim("dyn")) }, false},
		"pod deleted":   {"nobody waits for it", func(r *rig, pod *corev1.Pod) { r.Delete(pod) }, false},
		"pod elsewhere": {"somebody bound it by hand", func(r *rig, pod *corev1.Pod) { onto(r, pod, "n2") }, false},
		"pod there":     {"its volume is needed", func(r *rig, pod *corev1.Pod) { onto(r, pod, "n1") }, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := fakeapi.Pod("web", "sta", "dyn")
			r := start(t, pool(t, map[string]string{"n1": "8Gi", "n2": "8Gi"}, fakeapi.Class("local", volume.NoProvisioner), fakeapi.PV("free", "local", "2Gi", "n1"),
				fakeapi.PVC("sta", "local", "1Gi"), fakeapi.PVC("dyn", "fast", "1Gi"), pod))
			if err := r.bindInVain(pod); err == nil || r.Promises() != 1 {
				t.Fatalf("setup: %v, %d promises", err, r.Promises())
			}
			tc.end(r, pod)
			r.seen("the promise ends", func() bool { return r.Promises() == 0 })
			if tc.stays {
				// Nothing undoes it behind the test's back either.
				leave, err := r.promises.enter(t.Context(), pod.UID)
				if err != nil {
					t.Fatal(err)
				}
				leave()
				if r.Volume("free").Spec.ClaimRef == nil {
					t.Errorf("%s, and it was given back", tc.reason)
				}
				return
			}
			r.seen(tc.reason, func() bool { return r.Volume("free").Spec.ClaimRef == nil })
		})
	}
}

// TestGivesBackInTurn: a volume that a bind counts on again is not given back under it.
func TestGivesBackInTurn(t *testing.T) {
	pod := fakeapi.Pod("web", "sta")
	fake, onFake := fakeTime()
	r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.Class("local", volume.NoProvisioner), fakeapi.PV("free", "local", "2Gi", "n1"),
		fakeapi.PVC("sta", "local", "1Gi"), pod), onFake)
	if err := r.bindInVain(pod); err == nil || r.Promises() != 1 {
		t.Fatalf("setup: %v, %d promises", err, r.Promises())
	}
	leave, err := r.promises.enter(t.Context(), pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	fake.Step(keptFor)
	r.seen("the promise ends", func() bool { return r.Promises() == 0 })
	// The bind whose turn it is.
	if _, err := r.commit(pod, "n1"); err != nil {
		t.Fatal(err)
	}
	r.promises.keep(pod.UID)
	leave()
	for range 3 {
		if leave, err = r.promises.enter(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if r.Volume("free").Spec.ClaimRef == nil {
			t.Error("the volume was given back")
		}
		leave()
	}
	fake.Step(keptFor)
	r.seen("the promise ends again", func() bool { return r.Promises() == 0 })
}

// onto has the pod on the node.
func onto(r *rig, pod *corev1.Pod, node string) {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	r.Put(pod)
}
