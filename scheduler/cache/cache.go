package cache

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	stores    objectStores
	classes   storagelisters.StorageClassLister
	drivers   storagelisters.CSIDriverLister
	claimsOf  corelisters.PersistentVolumeClaimLister
	clock     clock.WithTicker
	ended     func()
	sharing   []Sharing
	snapshots Snapshots
	// synced tells of each handler whether it has had its informer's first list.
	synced []cache.DoneChecker

	// timed wakes Run when a deadline was set.
	timed chan struct{}
	// loaded reads the stores once, before the first snapshot: events of the
	// first list may still be on their way then.
	loaded sync.Once
	// occupied: node → *Occupancy. Written under mu, read without.
	occupied sync.Map
	// kept are limits that vanished: node → driver → limit. Written under mu,
	// replaced and never changed.
	kept atomic.Pointer[map[string]map[string]int64]

	mu sync.Mutex
	// Guarded by mu.
	ledger      *ledger
	volumes     *volumes
	attachments attachments
	limits      limits
	refusals    refusals
	waiters     waiters
	// known: claim key → what was last seen of it, to end the hold of a claim
	// that was deleted or replaced by a namesake, and to tell what changed.
	known map[string]knownClaim
	// naming: PersistentVolume → claims that name it.
	naming map[string]map[string]struct{}
	// last is the newest snapshot, nil after a change.
	last *Snapshot
}

// objectStores are the informers' stores.
type objectStores struct {
	claims, volumes, capacities, nodes, pods, csiNodes, attachments cache.Store
}

// knownClaim is what tells one state of a claim from another here.
type knownClaim struct{ uid, class, volume, selected string }

// New makes a cache over the factory's informers, which it registers with. The
// factory is started by the caller, and Run after it.
func New(f informers.SharedInformerFactory, o Options) (*Cache, error) {
	core, storage := f.Core().V1(), f.Storage().V1()
	all := newPlaces(newAtlas())
	c := &Cache{
		stores: objectStores{
			claims: core.PersistentVolumeClaims().Informer().GetStore(), volumes: core.PersistentVolumes().Informer().GetStore(),
			capacities: storage.CSIStorageCapacities().Informer().GetStore(), nodes: core.Nodes().Informer().GetStore(),
			pods: core.Pods().Informer().GetStore(), csiNodes: storage.CSINodes().Informer().GetStore(),
			attachments: storage.VolumeAttachments().Informer().GetStore(),
		},
		classes: storage.StorageClasses().Lister(), drivers: storage.CSIDrivers().Lister(),
		claimsOf: core.PersistentVolumeClaims().Lister(),
		clock:    o.Clock, ended: o.Ended, sharing: o.Sharing, snapshots: o.Snapshots, timed: make(chan struct{}, 1),
		ledger: newLedger(UnnumberedGrace, all), volumes: newVolumes(all), attachments: newAttachments(),
		limits: newLimits(o.AttachGrace), refusals: newRefusals(UnnumberedGrace), waiters: waiters{}, known: map[string]knownClaim{}, naming: map[string]map[string]struct{}{},
	}
	c.kept.Store(&map[string]map[string]int64{})
	for _, r := range []struct {
		informer cache.SharedIndexInformer
		observe  func(key string)
		same     func(old, new any) bool
	}{
		{core.PersistentVolumeClaims().Informer(), c.observeClaim, nil},
		{core.PersistentVolumes().Informer(), c.observeVolume, nil},
		{storage.CSIStorageCapacities().Informer(), c.observeCapacity, nil},
		{core.Nodes().Informer(), c.observeNode, nil},
		{core.Pods().Informer(), c.observePod, sameObject},
		{storage.StorageClasses().Informer(), c.observeClass, nil},
		{storage.CSINodes().Informer(), c.observeCSINode, nil},
		{storage.VolumeAttachments().Informer(), c.observeAttachment, nil},
	} {
		registered, err := r.informer.AddEventHandler(handler(r.observe, r.same))
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", r.informer, err)
		}
		c.synced = append(c.synced, registered.HasSyncedChecker())
	}
	return c, nil
}

// HasSynced reports whether the cache has had the events of every informer's
// first list.
func (c *Cache) HasSynced() bool {
	return !slices.ContainsFunc(c.synced, func(d cache.DoneChecker) bool { return !cache.IsDone(d) })
}

// WaitForSync waits until HasSynced; false says that ctx ended before.
func (c *Cache) WaitForSync(ctx context.Context) bool { return cache.WaitFor(ctx, "", c.synced...) }

// load reads every store; its result does not depend on what was read before.
func (c *Cache) load() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range []struct {
		store cache.Store
		sync  func(string)
	}{
		{c.stores.nodes, c.syncNode},
		{c.stores.capacities, c.syncCapacity},
		{c.stores.volumes, c.syncVolume},
		{c.stores.claims, c.syncClaim},
		{c.stores.csiNodes, c.syncCSINode},
		{c.stores.attachments, c.syncAttachment},
	} {
		for _, key := range s.store.ListKeys() {
			s.sync(key)
		}
	}
	c.wakeRun()
}

// wakeRun lets Run see a new deadline. It needs mu.
func (c *Cache) wakeRun() {
	if len(c.ledger.deadlines) == 0 && len(c.limits.kept) == 0 && len(c.refusals.byClass) == 0 {
		return
	}
	select {
	case c.timed <- struct{}{}:
	default:
	}
}

// Run ends what only time can end, until ctx is done.
func (c *Cache) Run(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		next, now := c.nextDeadline(), c.clock.Now()
		c.mu.Unlock()
		if !next.IsZero() && !next.After(now) {
			// A change woke the loop in the moment in which its timer was due.
			c.expire()
			continue
		}
		var due <-chan time.Time
		stop := func() bool { return true }
		if !next.IsZero() {
			timer := c.clock.NewTimer(next.Sub(now))
			due, stop = timer.C(), timer.Stop
		}
		select {
		case <-ctx.Done():
		case <-c.timed:
		case <-due:
			c.expire()
		}
		stop()
	}
}

// nextDeadline is when time next ends something, zero for never. It needs mu.
func (c *Cache) nextDeadline() time.Time {
	next := c.ledger.schedule(c.clock.Now())
	for _, at := range []time.Time{c.limits.next(), c.refusals.next()} {
		if next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return next
}

func (c *Cache) expire() {
	c.mu.Lock()
	now := c.clock.Now()
	ended := c.ledger.expire(now)
	if c.limits.expire(now) {
		ended = true
		c.shareLimits()
	}
	ended = c.refusals.expire(now) || ended
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
		atlas := c.ledger.places.atlas.snapshot()
		c.last = &Snapshot{
			free: c.volumes.free.snapshot(atlas), segments: c.ledger.segments.snapshot(atlas),
			atlas: atlas, most: map[string]mostAvailable{},
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
