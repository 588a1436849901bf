package extender

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestBindGone: a pod that goes before its volumes are written is not waited for.
func TestBindGone(t *testing.T) {
	for name, then := range map[string]struct {
		pod  *corev1.Pod
		err  error
		want string
	}{
		"deleted":  {nil, apierrors.NewNotFound(volume0, "web"), "not found"},
		"replaced": {fakeapi.Pod("another"), nil, "was replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := fakeapi.Pod("web", "a")
			c := pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "1Gi"))
			asked := false
			c.Client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				if !asked {
					asked = true
					return true, pod, nil
				}
				return true, then.pod, then.err
			})
			r := start(t, c)
			if err := r.bind(pod, "n1"); err == nil || !strings.Contains(err.Error(), then.want) || r.Promises() != 0 {
				t.Errorf("%v, %d promises; want %q", err, r.Promises(), then.want)
			}
		})
	}
}

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
