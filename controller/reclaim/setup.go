package reclaim

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/controller/scope"
)

// Reason and action of the event; the reason is external-provisioner's.
const (
	reasonFailed = "VolumeFailedDelete"
	actionDelete = "Delete"
)

// Config is what reclaiming is made of.
type Config struct {
	Scope  scope.Scope
	Driver Driver
	// CallTimeout bounds one call to the driver; 0 means 30 s.
	CallTimeout time.Duration
	// MaxInterval is the longest pause between two tries; 0 means 5 min.
	MaxInterval time.Duration
	// Workers is how many volumes are deleted at once; 0 means 8.
	Workers int
}

func (c Config) withDefaults() (Config, error) {
	if err := c.Scope.Validate(); err != nil {
		return c, err
	}
	if c.Driver == nil {
		return c, errors.New("reclaim: Driver must be set")
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = 30 * time.Second
	}
	if c.MaxInterval == 0 {
		c.MaxInterval = 5 * time.Minute
	}
	if c.Workers == 0 {
		c.Workers = 8
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
		scope: c.Scope, client: cached, live: live, events: events,
		driver: c.Driver, callTimeout: c.CallTimeout,
	}, nil
}

// SetupWithManager starts reclaiming with the manager. The manager's cache
// should be made with scope.Cache.
func SetupWithManager(mgr manager.Manager, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	r, err := New(c, mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("berth-reclaimer"))
	if err != nil {
		return err
	}
	err = builder.ControllerManagedBy(mgr).
		Named("reclaim").
		For(&corev1.PersistentVolume{}).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: c.Workers,
			NeedLeaderElection:      new(false),
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, c.MaxInterval),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up reclaiming: %w", err)
	}
	return nil
}
