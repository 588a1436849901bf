package extender

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/args"
	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/cache"
)

// BindTimeoutSeconds is the default of the args' field. kube-scheduler's
// httpTimeout for the extender must be longer by postTimeout at least.
const BindTimeoutSeconds = 20

// Options are what a Service stands on.
type Options struct {
	Client kubernetes.Interface
	// Informers are started by the caller, after New.
	Informers informers.SharedInformerFactory
	Args      args.Args
	Clock     clock.WithTickerAndDelayedExecution
	// Snapshots may be nil: claims made from snapshots then go anywhere.
	Snapshots cache.Snapshots
	Events    events.EventRecorder
}

// Service answers the verbs. Its methods may run in parallel.
type Service struct {
	client   kubernetes.Interface
	cache    *cache.Cache
	binder   *binder.Binder
	tenancy  *tenancy
	promises *promises
	budget   time.Duration

	// committing makes judging a node and promising it one step: between the two no
	// other pod may be promised what was judged free.
	committing sync.Mutex
	synced     []toolscache.DoneChecker
}

// New makes a service over the factory's informers.
func New(o Options) (*Service, error) {
	c, err := cache.New(o.Informers, cache.Options{
		Clock: o.Clock, Snapshots: o.Snapshots, Sharing: o.Args.Sharing(), AttachGrace: o.Args.AttachGrace(),
	})
	if err != nil {
		return nil, err
	}
	s := &Service{client: o.Client, cache: c, budget: o.Args.BindTimeout()}
	s.tenancy = newTenancy(o.Informers.Storage().V1().CSINodes().Lister())
	s.binder = binder.New(binder.Options{
		Client: o.Client, Cache: c, Nodes: s.tenancy, Shape: o.Args.Scores(), Clock: o.Clock, Events: o.Events,
	})
	s.promises = newPromises(o.Clock, c, s.tenancy)
	pods, claims := o.Informers.Core().V1().Pods().Informer(), o.Informers.Core().V1().PersistentVolumeClaims().Informer()
	for _, r := range []struct {
		informer toolscache.SharedIndexInformer
		handler  toolscache.ResourceEventHandler
	}{
		// The tenancy first: a promise may only go when the node has its pod.
		{pods, inTurn{s.tenancy.handler(), s.promises.podHandler()}},
		{claims, s.promises.claimHandler()},
	} {
		registered, err := r.informer.AddEventHandler(r.handler)
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", r.informer, err)
		}
		s.synced = append(s.synced, registered.HasSyncedChecker())
	}
	// The listers of these have no handler that would tell.
	s.synced = append(s.synced,
		o.Informers.Storage().V1().CSIDrivers().Informer().HasSyncedChecker(),
		o.Informers.Storage().V1().CSINodes().Informer().HasSyncedChecker())
	return s, nil
}

// inTurn gives each event to one handler after the other: an informer lets those that
// are registered with it run side by side.
type inTurn []toolscache.ResourceEventHandler

// OnAdd implements ResourceEventHandler.
func (all inTurn) OnAdd(obj any, isInInitialList bool) {
	for _, h := range all {
		h.OnAdd(obj, isInInitialList)
	}
}

// OnUpdate implements ResourceEventHandler.
func (all inTurn) OnUpdate(old, obj any) {
	for _, h := range all {
		h.OnUpdate(old, obj)
	}
}

// OnDelete implements ResourceEventHandler.
func (all inTurn) OnDelete(obj any) {
	for _, h := range all {
		h.OnDelete(obj)
	}
}

// Run ends what only time can end, until ctx is done.
func (s *Service) Run(ctx context.Context) { s.cache.Run(ctx) }

// Ready reports whether the service knows all that the API server had when it
// started. Until then it would promise what is taken.
func (s *Service) Ready() bool {
	for _, d := range s.synced {
		if !toolscache.IsDone(d) {
			return false
		}
	}
	return s.cache.HasSynced()
}

// WaitForSync waits until Ready; false says that ctx ended before.
func (s *Service) WaitForSync(ctx context.Context) bool {
	return toolscache.WaitFor(ctx, "", s.synced...) && s.cache.WaitForSync(ctx)
}

// Promises is how many pods have volumes promised to them that are not bound yet.
func (s *Service) Promises() int { return s.promises.count() }
