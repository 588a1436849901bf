package expand

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/berth-storage/berth/controller/internal/slow"
	"github.com/berth-storage/berth/controller/scope"
)

// Reasons and action of events; the reasons are external-resizer's.
const (
	reasonResizing   = "Resizing"
	reasonFailed     = "VolumeResizeFailed"
	reasonNodeStep   = "FileSystemResizeRequired"
	reasonSuccessful = "VolumeResizeSuccessful"

	actionExpand = "Expand"
)

// Config is what expanding is made of.
type Config struct {
	Scope scope.Scope
	// Driver must have the capability EXPAND_VOLUME of its controller service.
	Driver Driver
	// CallTimeout bounds one call to the driver; 0 means 30 s.
	CallTimeout time.Duration
	// MaxInterval is the longest pause between two tries; 0 means 5 min.
	MaxInterval time.Duration
	// Workers is how many claims are grown at once; 0 means 4.
	Workers int
	// Clock is for tests; nil means the real one.
	Clock clock.PassiveClock
}

func (c Config) withDefaults() (Config, error) {
	if err := c.Scope.Validate(); err != nil {
		return c, err
	}
	if c.Driver == nil {
		return c, errors.New("expand: Driver must be set")
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = 30 * time.Second
	}
	if c.MaxInterval == 0 {
		c.MaxInterval = 5 * time.Minute
	}
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return c, nil
}

// New makes a Reconciler. cached may lag behind the API server, and may lack
// claims; live must not.
func New(c Config, cached client.Client, live client.Reader, events notes.Recorder) (*Reconciler, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Reconciler{
		scope: c.Scope, client: cached, live: live, events: events, driver: c.Driver, clock: c.Clock,
		refused: slow.New(c.Clock, c.MaxInterval), callTimeout: c.CallTimeout,
		failed: make(map[types.UID]int64),
	}, nil
}

// SetupWithManager starts expanding with the manager. The manager's cache
// should be made with scope.Cache.
func SetupWithManager(mgr manager.Manager, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	r, err := New(c, mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("berth-resizer"))
	if err != nil {
		return err
	}
	err = builder.ControllerManagedBy(mgr).
		Named("expand").
		For(&corev1.PersistentVolumeClaim{}, builder.WithPredicates(growth())).
		// A PersistentVolume may become known after its claim asked for more, and
		// after a restart the last step of a growth may be left to do.
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(claimOf)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: c.Workers,
			NeedLeaderElection:      new(false),
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, c.MaxInterval),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up expanding: %w", err)
	}
	return nil
}

// claimOf maps a PersistentVolume to its claim.
func claimOf(_ context.Context, pv client.Object) []reconcile.Request {
	v, ok := pv.(*corev1.PersistentVolume)
	if !ok || v.Spec.ClaimRef == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{
		Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name,
	}}}
}

// growth lets claims pass that are growing, and the change that ends it.
func growth() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return growing(e.Object) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return growing(e.ObjectOld) || growing(e.ObjectNew) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

func growing(o client.Object) bool {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	return ok && claim.Status.Phase == corev1.ClaimBound &&
		(claim.Spec.Resources.Requests.Storage().Cmp(*claim.Status.Capacity.Storage()) > 0 ||
			len(claim.Status.AllocatedResourceStatuses) > 0)
}
