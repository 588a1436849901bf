package claimwatch

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// Guard ends an agent that chose LabelledClaims by itself when the policy is taken
// away: started again, it watches every claim. Without that, claims would wait for
// it unseen. Start may be run by a manager or by itself.
type Guard struct {
	Client kubernetes.Interface
	Node   string
}

// Start returns an error once the label is not kept any more, and nil when ctx
// ends.
func (g *Guard) Start(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, w := range g.watches() {
		group.Go(func() error { return g.follow(groupCtx, w) })
	}
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

type watched struct {
	lw   cache.ListerWatcher
	kind runtime.Object
}

// watches are of one object each, by its name.
func (g *Guard) watches() []watched {
	named := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", volume.ClaimLabelPolicy).String()
		return o
	}
	group := g.Client.AdmissionregistrationV1()
	policies, bindings := group.MutatingAdmissionPolicies(), group.MutatingAdmissionPolicyBindings()
	return []watched{
		{kind: &admissionregistrationv1.MutatingAdmissionPolicy{}, lw: g.listWatch(cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return policies.List(ctx, named(o))
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return policies.Watch(ctx, named(o))
			},
		})},
		{kind: &admissionregistrationv1.MutatingAdmissionPolicyBinding{}, lw: g.listWatch(cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return bindings.List(ctx, named(o))
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return bindings.Watch(ctx, named(o))
			},
		})},
	}
}

func (g *Guard) listWatch(lw cache.ListWatch) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&lw, g.Client)
}

// follow asks anew, once at the start and whenever the object changes or goes. An
// API server that does not answer is no reason to end.
func (g *Guard) follow(ctx context.Context, w watched) error {
	again := func() error {
		choice, err := Choose(ctx, g.Client.AdmissionregistrationV1(), Auto, g.Node)
		if err == nil && choice.Claims != scope.LabelledClaims {
			return fmt.Errorf("ending, to watch every claim from the next start on: %s", choice.Why)
		}
		return nil
	}
	_, err := watchtools.UntilWithSync(ctx, w.lw, w.kind,
		func(cache.Store) (bool, error) { return false, again() },
		func(watch.Event) (bool, error) { return false, again() })
	if err != nil {
		return fmt.Errorf("watching %T %s: %w", w.kind, volume.ClaimLabelPolicy, err)
	}
	return nil
}
