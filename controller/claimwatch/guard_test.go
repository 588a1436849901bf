package claimwatch

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-storage/berth/volume"
)

// TestGuard: whatever takes the policy's effect away ends the agent, whether it
// happens before the guard begins to look or after.
func TestGuard(t *testing.T) {
	remove := map[string]struct {
		reason string
		do     func(context.Context, *fake.Clientset) error
	}{
		"policy": {"nobody keeps the label", func(ctx context.Context, api *fake.Clientset) error {
			return api.AdmissionregistrationV1().MutatingAdmissionPolicies().Delete(ctx, volume.ClaimLabelPolicy, metav1.DeleteOptions{})
		}},
		"binding": {"a policy without a binding does nothing", func(ctx context.Context, api *fake.Clientset) error {
			return api.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Delete(ctx, volume.ClaimLabelPolicy, metav1.DeleteOptions{})
		}},
		"rebound": {"the binding is another policy's now", func(ctx context.Context, api *fake.Clientset) error {
			_, binding := shipped()
			binding.Spec.PolicyName = "other"
			_, err := api.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Update(ctx, binding, metav1.UpdateOptions{})
			return err
		}},
	}
	for name, r := range remove {
		for _, early := range []bool{true, false} {
			policy, binding := shipped()
			api := fake.NewClientset(policy, binding)
			if early {
				if err := r.do(t.Context(), api); err != nil {
					t.Fatal(err)
				}
			}
			open := watching(api)
			done := make(chan error, 1)
			go func() {
				done <- (&Guard{Client: api, Node: "n1"}).Start(t.Context())
			}()
			if !early {
				<-open
				<-open
				if err := r.do(t.Context(), api); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-done; err == nil || !strings.Contains(err.Error(), "every claim") {
				t.Errorf("%s, early %t: %s: got %v", name, early, r.reason, err)
			}
		}
	}
}

// watching tells of each watch of the two objects once it is open: what happens
// between a list and a watch is lost on this API server, and on no real one.
func watching(api *fake.Clientset) <-chan struct{} {
	open := make(chan struct{}, 2)
	api.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := api.Tracker().Watch(action.GetResource(), action.GetNamespace())
		select {
		case open <- struct{}{}:
		default:
		}
		return true, w, err
	})
	return open
}

// TestGuardEnds quietly with the agent.
func TestGuardEnds(t *testing.T) {
	policy, binding := shipped()
	api := fake.NewClientset(policy, binding)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&Guard{Client: api, Node: "n1"}).Start(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
