package cache

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/binding"
)

// UnnumberedGrace is how long the bytes of a volume stay held after it appeared
// where its driver numbers no allocations and publishes no newer capacity:
// twice external-provisioner's default --capacity-poll-interval.
const UnnumberedGrace = 2 * time.Minute

// Cache is the scheduler's knowledge of volumes. All methods are safe for
// concurrent use.
type Cache struct {
	claims     cache.Store
	pvs        cache.Store
	capacities cache.Store
	nodes      cache.Store
	pods       cache.Store
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	claimsOf   corelisters.PersistentVolumeClaimLister
	clock      clock.WithTicker

	// timed wakes Run when a deadline was set.
	timed chan struct{}
	// ended is called, without a lock, when time alone ended a hold.
	ended func()
	// loaded reads the stores once, before the first snapshot: events of the
	// first list may still be on their way then.
	loaded sync.Once

	mu sync.Mutex
	// Guarded by mu.
	ledger  *ledger
	volumes *volumes
	waiters waiters
	// claimUID: claim key → UID last seen, to end the hold of a claim that was
	// deleted, or replaced by a namesake.
	claimUID map[string]string
	// last is the newest snapshot, nil after a change.
	last *Snapshot
}

// New makes a cache over the factory's informers, which it registers with.
// ended is called when a hold ends by time and no event of the API will tell.
// The factory is started by the caller, and Run after it.
func New(f informers.SharedInformerFactory, clk clock.WithTicker, ended func()) (*Cache, error) {
	core, storage := f.Core().V1(), f.Storage().V1()
	c := &Cache{
		claims: core.PersistentVolumeClaims().Informer().GetStore(), pvs: core.PersistentVolumes().Informer().GetStore(),
		capacities: storage.CSIStorageCapacities().Informer().GetStore(), nodes: core.Nodes().Informer().GetStore(),
		pods:    core.Pods().Informer().GetStore(),
		classes: storage.StorageClasses().Lister(), drivers: storage.CSIDrivers().Lister(),
		claimsOf: core.PersistentVolumeClaims().Lister(), clock: clk,
		timed: make(chan struct{}, 1), ended: ended,
		ledger: newLedger(UnnumberedGrace), volumes: newVolumes(), waiters: waiters{}, claimUID: map[string]string{},
	}
	for _, r := range []struct {
		informer cache.SharedIndexInformer
		observe  func(key string)
		same     func(old, new any) bool
	}{
		{core.PersistentVolumeClaims().Informer(), c.observeClaim, nil},
		{core.PersistentVolumes().Informer(), c.observeVolume, nil},
		{storage.CSIStorageCapacities().Informer(), c.observeCapacity, nil},
		{core.Nodes().Informer(), c.observeNode, sameLabels},
		{core.Pods().Informer(), c.observePod, func(any, any) bool { return true }},
	} {
		if _, err := r.informer.AddEventHandler(handler(r.observe, r.same)); err != nil {
			return nil, fmt.Errorf("watching %T: %w", r.informer, err)
		}
	}
	return c, nil
}

// handler reduces events to the key of what changed. same tells updates that
// the cache does not read; nil means none.
func handler(observe func(string), same func(old, new any) bool) cache.ResourceEventHandler {
	notify := func(obj any) {
		// The only error is an object without metadata, which no informer has.
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			observe(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: notify,
		UpdateFunc: func(old, new any) {
			if same == nil || !same(old, new) {
				notify(new)
			}
		},
		DeleteFunc: notify,
	}
}

func sameLabels(old, new any) bool {
	a, okA := old.(*v1.Node)
	b, okB := new.(*v1.Node)
	return okA && okB && maps.Equal(a.Labels, b.Labels)
}

// Observe brings the cache up to date with one object, named by an event that
// somebody else received first. Objects of other kinds are ignored.
func (c *Cache) Observe(obj any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	switch obj.(type) {
	case *v1.PersistentVolumeClaim:
		c.observeClaim(key)
	case *v1.PersistentVolume:
		c.observeVolume(key)
	case *storagev1.CSIStorageCapacity:
		c.observeCapacity(key)
	case *v1.Node:
		c.observeNode(key)
	}
}

// get reads an object from an informer's store; nil where it is not there.
func get[T any](store cache.Store, key string) *T {
	obj, exists, err := store.GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	typed, _ := obj.(*T)
	return typed
}

func (c *Cache) observeClaim(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncClaim(key)
	c.waiters.poke(ClaimKey(key))
	c.wakeRun()
}

// syncClaim needs mu.
func (c *Cache) syncClaim(key string) {
	pvc := get[v1.PersistentVolumeClaim](c.claims, key)
	if pvc != nil && c.claimUID[key] == string(pvc.UID) && c.ledger.knows(factsOfClaim(pvc)) {
		return
	}
	c.last = nil
	if old := c.claimUID[key]; old != "" && (pvc == nil || old != string(pvc.UID)) {
		c.ledger.deleteClaim(old)
		delete(c.claimUID, key)
	}
	if pvc != nil {
		c.claimUID[key] = string(pvc.UID)
		c.ledger.setClaim(factsOfClaim(pvc))
	}
}

func (c *Cache) observeVolume(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.volumes.byName[name]
	c.syncVolume(name)
	for _, e := range []*volumeEntry{old, c.volumes.byName[name]} {
		if e != nil && e.claim != "" {
			c.waiters.poke(ClaimKey(e.claim))
		}
	}
	c.waiters.poke(VolumeKey(name))
	c.wakeRun()
}

// syncVolume needs mu.
func (c *Cache) syncVolume(name string) {
	c.last = nil
	pv := get[v1.PersistentVolume](c.pvs, name)
	if pv == nil {
		c.volumes.delete(name)
		c.ledger.deleteVolume(name)
		return
	}
	c.volumes.set(pv)
	c.ledger.setVolume(factsOfVolume(pv))
}

func (c *Cache) observeCapacity(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncCapacity(key)
}

// syncCapacity needs mu.
func (c *Cache) syncCapacity(key string) {
	c.last = nil
	if o := get[storagev1.CSIStorageCapacity](c.capacities, key); o != nil {
		c.ledger.setCapacity(factsOfCapacity(key, o))
	} else {
		c.ledger.deleteCapacity(key)
	}
}

func (c *Cache) observeNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncNode(name)
	c.waiters.poke(NodeKey(name))
}

// syncNode needs mu.
func (c *Cache) syncNode(name string) {
	c.last = nil
	if n := get[v1.Node](c.nodes, name); n != nil {
		c.ledger.setNode(name, n.Labels)
	} else {
		c.ledger.deleteNode(name)
	}
}

func (c *Cache) observePod(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters.poke(PodKey(key))
}

// load reads every store; its result does not depend on what was read before.
func (c *Cache) load() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range []struct {
		store cache.Store
		sync  func(string)
	}{{c.nodes, c.syncNode}, {c.capacities, c.syncCapacity}, {c.pvs, c.syncVolume}, {c.claims, c.syncClaim}} {
		for _, key := range s.store.ListKeys() {
			s.sync(key)
		}
	}
	c.wakeRun()
}

// wakeRun lets Run see a new deadline. It needs mu.
func (c *Cache) wakeRun() {
	if len(c.ledger.deadlines) == 0 {
		return
	}
	select {
	case c.timed <- struct{}{}:
	default:
	}
}

// Run ends what only time can end, until ctx is done.
func (c *Cache) Run(ctx context.Context) {
	for {
		c.mu.Lock()
		next := c.ledger.schedule(c.clock.Now())
		c.mu.Unlock()
		var due <-chan time.Time
		stop := func() bool { return true }
		if !next.IsZero() {
			timer := c.clock.NewTimer(next.Sub(c.clock.Now()))
			due, stop = timer.C(), timer.Stop
		}
		select {
		case <-ctx.Done():
			stop()
			return
		case <-c.timed:
			stop()
		case <-due:
			c.expire()
		}
	}
}

func (c *Cache) expire() {
	c.mu.Lock()
	ended := c.ledger.expire(c.clock.Now())
	if ended {
		c.last = nil
	}
	c.mu.Unlock()
	if ended && c.ended != nil {
		c.ended()
	}
}

// Wait registers for changes of the objects named; Stop ends it.
func (c *Cache) Wait(keys ...string) *Waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiters.add(keys)
}

// Stop ends a Waiter.
func (c *Cache) Stop(w *Waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters.remove(w)
}

// snapshot needs mu.
func (c *Cache) snapshot() *Snapshot {
	if c.last == nil {
		c.last = &Snapshot{
			free: c.volumes.free.snapshot(), segments: c.ledger.segments.snapshot(),
			nodes: c.ledger.shareNodes(), most: map[string]mostAvailable{},
		}
	}
	return c.last
}

// Snapshot is the present view. It includes every decision made so far.
func (c *Cache) Snapshot() binding.View {
	c.loaded.Do(c.load)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshot()
}
