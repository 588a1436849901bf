package extender

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
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
