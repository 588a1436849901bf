package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-storage/berth/controller/inflight"
	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/controller/internal/slow"
	"github.com/berth-storage/berth/controller/scope"
)

// Reasons and actions of events; the reasons are external-provisioner's.
const (
	reasonProvisioning = "Provisioning"
	reasonSucceeded    = "ProvisioningSucceeded"
	reasonFailed       = "ProvisioningFailed"
	reasonExternal     = "ExternalProvisioning"

	actionProvision  = "Provision"
	actionReschedule = "Reschedule"
)

// Config is what provisioning is made of.
type Config struct {
	Scope        scope.Scope
	Driver       Driver
	Capabilities Capabilities
	Records      Records
	// InFlight is shared with controller/capacity.
	InFlight *inflight.Set

	// DefaultFSType is for classes that name no filesystem; empty leaves the
	// choice to the driver.
	DefaultFSType string
	// CallTimeout bounds one call to the driver; 0 means 30 s.
	CallTimeout time.Duration
	// MaxInterval is the longest pause between two tries; 0 means 5 min.
	MaxInterval time.Duration
	// Workers is how many claims are provisioned at once; 0 means 8.
	Workers int
	// Clock is for tests; nil means the real one.
	Clock clock.PassiveClock
}

func (c Config) withDefaults() (Config, error) {
	if err := c.Scope.Validate(); err != nil {
		return c, err
	}
	if c.Driver == nil || c.Capabilities == nil || c.Records == nil || c.InFlight == nil {
		return c, errors.New("provision: Driver, Capabilities, Records and InFlight must be set")
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
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
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
		driver: c.Driver, capabilities: c.Capabilities, records: c.Records, inflight: c.InFlight,
		refused:     slow.New(c.Clock, c.MaxInterval),
		callTimeout: c.CallTimeout, defaultFSType: c.DefaultFSType,
	}, nil
}

// SetupWithManager starts provisioning with the manager. The manager's cache
// should be made with scope.Cache.
func SetupWithManager(mgr manager.Manager, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	r, err := New(c, mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("berth-provisioner"))
	if err != nil {
		return err
	}
	waiting := handler.TypedEnqueueRequestsFromMapFunc(r.waitingClaims)
	err = builder.TypedControllerManagedBy[Key](mgr).
		Named("provision").
		// Old and new state of a changed claim are both mapped, so a claim whose
		// selection was taken away comes too.
		Watches(&corev1.PersistentVolumeClaim{}, handler.TypedEnqueueRequestsFromMapFunc(r.ownClaim)).
		// A class can appear after its claims, and one that was made anew may
		// allow what the driver refused.
		Watches(&storagev1.StorageClass{}, waiting, builder.WithPredicates(created())).
		// Topology labels and the registration of the driver can come late.
		Watches(&corev1.Node{}, waiting, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&storagev1.CSINode{}, waiting).
		// A PersistentVolume that was deleted before it was bound is made anew.
		Watches(&corev1.PersistentVolume{}, handler.TypedEnqueueRequestsFromMapFunc(r.claimOf), builder.WithPredicates(deleted())).
		WatchesRawSource(source.TypedFunc[Key](r.unfinished)).
		WithOptions(controller.TypedOptions[Key]{
			MaxConcurrentReconciles: c.Workers,
			// Every node acts for itself; there is no leader among agents.
			NeedLeaderElection: new(false),
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[Key](time.Second, c.MaxInterval),
			LogConstructor:     logger(mgr.GetLogger()),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up provisioning: %w", err)
	}
	return nil
}

// ownClaim maps a claim of this scope to its key.
func (r *Reconciler) ownClaim(_ context.Context, claim client.Object) []Key {
	if !r.scope.OwnsClaim(claim) {
		return nil
	}
	return []Key{{NamespacedName: client.ObjectKeyFromObject(claim), UID: claim.GetUID()}}
}

// claimOf maps a PersistentVolume to its claim.
func (r *Reconciler) claimOf(_ context.Context, pv client.Object) []Key {
	v, ok := pv.(*corev1.PersistentVolume)
	if !ok || v.Spec.ClaimRef == nil {
		return nil
	}
	ref := v.Spec.ClaimRef
	return []Key{{NamespacedName: types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, UID: ref.UID}}
}

// waitingClaims maps a node, or a class, to the claims that may wait for it.
func (r *Reconciler) waitingClaims(ctx context.Context, about client.Object) []Key {
	var claims corev1.PersistentVolumeClaimList
	if err := r.client.List(ctx, &claims); err != nil {
		klog.FromContext(ctx).Error(err, "cannot list the waiting claims")
		return nil
	}
	class, ofClass := about.(*storagev1.StorageClass)
	var keys []Key
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Spec.VolumeName != "" || ofClass && storagehelpers.GetPersistentVolumeClaimClass(claim) != class.Name {
			continue
		}
		keys = append(keys, r.ownClaim(ctx, claim)...)
	}
	return keys
}

// unfinished brings back, at the start, every claim with a record. A record
// that cannot be read is left as it is, and its claim is not provisioned.
func (r *Reconciler) unfinished(ctx context.Context, queue workqueue.TypedRateLimitingInterface[Key]) error {
	records, err := r.records.List()
	if err != nil {
		klog.FromContext(ctx).Error(err, "cannot read every provisioning record")
	}
	for _, record := range records {
		queue.Add(Key{NamespacedName: record.Claim, UID: record.ClaimUID})
	}
	return nil
}

// created lets only creations pass: nothing in a class that matters here can
// change.
func created() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// deleted lets only deletions pass.
func deleted() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

func logger(base logr.Logger) func(*Key) logr.Logger {
	base = base.WithValues("controller", "provision")
	return func(k *Key) logr.Logger {
		if k == nil {
			return base
		}
		return base.WithValues("pvc", klog.KRef(k.Namespace, k.Name))
	}
}
