package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/notes"
)

// Config is what the cluster-scoped work is made of.
type Config struct {
	// Driver is the CSI driver whose claims are cared for.
	Driver string
	// Namespace holds the Lease.
	Namespace string
	// LeaseDuration, RenewDeadline and RetryPeriod are those of the election, as
	// client-go has them; 0 means 15 s, 10 s and 2 s.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Debounce is how long changes gather before a round; 0 means 50 ms.
	Debounce time.Duration
	// Retell is the pause before a claim that still waits is told so again;
	// 0 means 30 min, half the life of an event.
	Retell time.Duration
	// Clock is for tests; nil means the real one.
	Clock clock.PassiveClock
}

func (c Config) withDefaults() (Config, error) {
	if c.Driver == "" {
		return c, errors.New("cluster: the driver's name is empty; set Config.Driver")
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration = 15 * time.Second
	}
	if c.RenewDeadline == 0 {
		c.RenewDeadline = 10 * time.Second
	}
	if c.RetryPeriod == 0 {
		c.RetryPeriod = 2 * time.Second
	}
	if c.Debounce == 0 {
		c.Debounce = 50 * time.Millisecond
	}
	if c.Retell == 0 {
		c.Retell = 30 * time.Minute
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.LeaseDuration <= c.RenewDeadline || float64(c.RenewDeadline) <= leaderelection.JitterFactor*float64(c.RetryPeriod) {
		return c, fmt.Errorf("cluster: the lease duration %s must be above the renew deadline %s, and that above %.1f times the retry period %s",
			c.LeaseDuration, c.RenewDeadline, leaderelection.JitterFactor, c.RetryPeriod)
	}
	return c, nil
}

// New makes a Reconciler. cached may lag behind the API server; live must not.
func New(c Config, cached client.Client, live client.Reader, events notes.Recorder) (*Reconciler, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Reconciler{
		driver: c.Driver, client: cached, live: live, events: events,
		clock: c.Clock, retell: c.Retell, memory: newMemory(),
	}, nil
}

// SetupWithManager starts the rounds with the manager, when it leads.
func SetupWithManager(ctx context.Context, mgr manager.Manager, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	r, err := New(c, mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("berth-cluster"))
	if err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.PersistentVolumeClaim{}, indexOpen, openClaims(c.Driver)); err != nil {
		return fmt.Errorf("indexing claims: %w", err)
	}
	if err := setupPlaced(mgr, r); err != nil {
		return err
	}
	round := soon(c.Debounce)
	err = builder.ControllerManagedBy(mgr).
		Named("cluster").
		Watches(&corev1.PersistentVolumeClaim{}, round, builder.WithPredicates(claimMatters(c.Driver))).
		Watches(&storagev1.StorageClass{}, round).
		Watches(&corev1.Node{}, round, builder.WithPredicates(onChange(nodeChanged))).
		Watches(&storagev1.CSINode{}, round, builder.WithPredicates(onChange(driversChanged))).
		Watches(&storagev1.CSIStorageCapacity{}, round).
		// A volume that appears is counted by its number instead of its claim's
		// hold, which may leave more room.
		Watches(&corev1.PersistentVolume{}, round, builder.WithPredicates(volumeComesOrGoes(c.Driver))).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 1,
			LogConstructor: func(*reconcile.Request) logr.Logger {
				return mgr.GetLogger().WithValues("controller", "cluster")
			},
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](200*time.Millisecond, time.Minute),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up the cluster-scoped work: %w", err)
	}
	return nil
}

// soon asks for a round after the debounce; the queue merges what comes before.
func soon(debounce time.Duration) handler.EventHandler {
	key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "cluster"}}
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, _ event.CreateEvent, q queue) { q.AddAfter(key, debounce) },
		UpdateFunc:  func(_ context.Context, _ event.UpdateEvent, q queue) { q.AddAfter(key, debounce) },
		DeleteFunc:  func(_ context.Context, _ event.DeleteEvent, q queue) { q.AddAfter(key, debounce) },
		GenericFunc: func(_ context.Context, _ event.GenericEvent, q queue) { q.AddAfter(key, debounce) },
	}
}

// onChange lets appearance and disappearance pass, and the updates that matter.
func onChange(matters func(before, after client.Object) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return matters(e.ObjectOld, e.ObjectNew) }}
}

// volumeComesOrGoes lets the driver's volumes pass when they appear and go.
func volumeComesOrGoes(driver string) predicate.Predicate {
	ours := func(o client.Object) bool {
		pv, ok := o.(*corev1.PersistentVolume)
		return ok && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return ours(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return ours(e.Object) },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
	}
}

// claimMatters lets claims of the driver pass, and of updates those that change
// what is read of a claim.
func claimMatters(driver string) predicate.Predicate {
	read := func(o client.Object) (claim, bool) {
		pvc, ok := o.(*corev1.PersistentVolumeClaim)
		if !ok {
			return claim{}, false
		}
		c, ours := readClaim(driver, pvc)
		c.object, c.version = nil, ""
		return c, ours
	}
	ours := func(o client.Object) bool { _, ok := read(o); return ok }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return ours(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return ours(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, was := read(e.ObjectOld)
			after, is := read(e.ObjectNew)
			// A claim without a volume passes with every change: a write to it may have
			// met an older version.
			return was != is || before != after || is && after.bound == ""
		},
	}
}

// nodeChanged reports a change in what is read of a node; heartbeats are none.
func nodeChanged(before, after client.Object) bool {
	a, ok := before.(*corev1.Node)
	b, okay := after.(*corev1.Node)
	return !ok || !okay || bar(a) != bar(b) || !maps.Equal(a.Labels, b.Labels)
}

func driversChanged(before, after client.Object) bool {
	a, ok := before.(*storagev1.CSINode)
	b, okay := after.(*storagev1.CSINode)
	if !ok || !okay || len(a.Spec.Drivers) != len(b.Spec.Drivers) {
		return true
	}
	for i := range a.Spec.Drivers {
		if a.Spec.Drivers[i].Name != b.Spec.Drivers[i].Name {
			return true
		}
	}
	return false
}
