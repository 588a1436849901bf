package capacity

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-storage/berth/controller/inflight"
	"github.com/berth-storage/berth/controller/scope"
)

// Config is what publishing is made of.
type Config struct {
	Scope scope.Scope
	// Namespace holds the objects.
	Namespace string
	Source    Source
	// InFlight is shared with controller/provision.
	InFlight *inflight.Set
	// Debounce is how long changes gather before they are published; 0 means
	// 50 ms.
	Debounce time.Duration
	// MaxWait bounds the wait for provisionings in flight; 0 means 10 s.
	MaxWait time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if err := c.Scope.Validate(); err != nil {
		return c, err
	}
	if c.Namespace == "" || c.Source == nil || c.InFlight == nil {
		return c, errors.New("capacity: Namespace, Source and InFlight must be set")
	}
	if c.Debounce == 0 {
		c.Debounce = 50 * time.Millisecond
	}
	if c.MaxWait == 0 {
		c.MaxWait = 10 * time.Second
	}
	return c, nil
}

// New makes a Reconciler. cached may lag behind the API server; live must not.
func New(c Config, cached client.Client, live client.Reader) (*Reconciler, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Reconciler{
		scope: c.Scope, namespace: c.Namespace, client: cached, live: live,
		source: c.Source, inflight: c.InFlight, maxWait: c.MaxWait,
	}, nil
}

// SetupWithManager starts publishing with the manager. The manager's cache
// should be made with scope.Cache.
func SetupWithManager(mgr manager.Manager, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	r, err := New(c, mgr.GetClient(), mgr.GetAPIReader())
	if err != nil {
		return err
	}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{r.key()}
	})
	err = builder.ControllerManagedBy(mgr).
		Named("capacity").
		Watches(&storagev1.StorageClass{}, all, builder.WithPredicates(ofDriver(c.Scope.Driver))).
		Watches(&corev1.Node{}, all, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		// Somebody may delete or change an object; and what the cache did not know
		// at the last write it knows now.
		Watches(&storagev1.CSIStorageCapacity{}, all).
		WatchesRawSource(source.TypedFunc[reconcile.Request](func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			go forward(ctx, c.Source.Changed(), func() { q.AddAfter(r.key(), c.Debounce) })
			return nil
		})).
		WithOptions(controller.Options{
			NeedLeaderElection: new(false),
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](200*time.Millisecond, time.Minute),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up capacity: %w", err)
	}
	return nil
}

// key is the one key of the queue.
func (r *Reconciler) key() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: r.scope.Node}}
}

// forward calls changed once at the start and after every signal, until ctx
// ends. The queue merges calls of one debounce, and a signal that comes while
// capacity is being published leads to another round.
func forward(ctx context.Context, signals <-chan struct{}, changed func()) {
	for {
		changed()
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
	}
}

// ofDriver lets a driver's classes pass, when they appear and disappear; their
// parameters cannot change.
func ofDriver(driver string) predicate.Predicate {
	is := func(o client.Object) bool {
		class, ok := o.(*storagev1.StorageClass)
		return ok && class.Provisioner == driver
	}
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return is(e.Object) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return is(e.Object) },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
