package extender

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestBindUnseen: kube-scheduler's watch is ahead, so that the informer does not have
// the pod that is to be bound, or still has its namesake of before.
func TestBindUnseen(t *testing.T) {
	cases := map[string]struct {
		reason      string
		namesake    bool
		comes, fits bool
	}{
		"new":          {"it is bound once it is seen", false, true, true},
		"replaced":     {"the one before is another pod", true, true, true},
		"never seen":   {"nothing is written for a pod that may be gone", false, false, true},
		"does not fit": {"nobody waits for that", false, false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := fakeapi.Pod("web", "a")
			size := "1Gi"
			if !tc.fits {
				size = "9Gi"
			}
			c := pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", size))
			if tc.namesake {
				before := pod.DeepCopy()
				before.UID = "uid-before"
				c.Put(before)
			}
			c.Client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, pod, nil })
			r := start(t, c)
			r.PVController(t.Context())
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			ended := make(chan error, 1)
			go func() { ended <- r.Bind(ctx, bindingOf(pod, "n1")) }()
			if !tc.fits {
				if err := <-ended; err == nil || !strings.Contains(err.Error(), "no longer fits") {
					t.Errorf("%s: %v", tc.reason, err)
				}
				return
			}
			select {
			case err := <-ended:
				t.Fatalf("%s: %v", tc.reason, err)
			case <-time.After(100 * time.Millisecond):
			}
			if tc.comes {
				r.Put(pod)
				if err := <-ended; err != nil || r.nodeOf(pod) != "n1" {
					t.Errorf("%s: %v, on node %q", tc.reason, err, r.nodeOf(pod))
				}
				return
			}
			giveUp()
			if err := <-ended; err == nil || !strings.Contains(err.Error(), "watch of the API server") || r.Promises() != 0 {
				t.Errorf("%s: %v, %d promises", tc.reason, err, r.Promises())
			}
			if node := r.Claim("a").Annotations[volume.AnnSelectedNode]; node != "" {
				t.Errorf("%s: the claim is selected for %s", tc.reason, node)
			}
		})
	}
}
