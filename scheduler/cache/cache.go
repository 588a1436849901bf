package cache

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
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
	all := places{}
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
		limits: newLimits(o.AttachGrace), refusals: newRefusals(UnnumberedGrace), waiters: waiters{}, known: map[string]knownClaim{},
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
		{core.Nodes().Informer(), c.observeNode, sameLabels},
		{core.Pods().Informer(), c.observePod, func(any, any) bool { return true }},
		{storage.StorageClasses().Informer(), c.observeClass, nil},
		{storage.CSINodes().Informer(), c.observeCSINode, nil},
		{storage.VolumeAttachments().Informer(), c.observeAttachment, nil},
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
	a, okA := old.(*corev1.Node)
	b, okB := new.(*corev1.Node)
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
	case *corev1.PersistentVolumeClaim:
		c.observeClaim(key)
	case *corev1.PersistentVolume:
		c.observeVolume(key)
	case *storagev1.CSIStorageCapacity:
		c.observeCapacity(key)
	case *corev1.Node:
		c.observeNode(key)
	case *storagev1.StorageClass:
		c.observeClass(key)
	case *storagev1.CSINode:
		c.observeCSINode(key)
	case *storagev1.VolumeAttachment:
		c.observeAttachment(key)
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
	pvc := get[corev1.PersistentVolumeClaim](c.stores.claims, key)
	old, was := c.known[key]
	if pvc == nil {
		if was {
			c.last = nil
			c.ledger.deleteClaim(old.uid)
			delete(c.known, key)
			c.claimMoved(key)
		}
		return
	}
	f := factsOfClaim(pvc)
	now := knownClaim{uid: f.uid, class: f.class, volume: f.volumeName, selected: f.selected}
	if was && old == now && c.ledger.knows(f) {
		return
	}
	c.last = nil
	c.known[key] = now
	switch {
	case was && old.uid != now.uid:
		c.ledger.deleteClaim(old.uid)
	case was && old.selected != "" && now.selected == "" && now.volume == "":
		c.givenBack(f, old.selected)
	}
	if old.uid != now.uid || old.volume != now.volume || old.class != now.class {
		c.claimMoved(key)
	}
	c.ledger.setClaim(f)
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
	old := c.volumes.byName[name]
	if pv := get[corev1.PersistentVolume](c.stores.volumes, name); pv != nil {
		c.volumes.set(pv)
		c.ledger.setVolume(factsOfVolume(pv))
	} else {
		c.volumes.delete(name)
		c.ledger.deleteVolume(name)
	}
	now := c.volumes.byName[name]
	switch {
	case old != nil && now != nil && old.key == now.key && old.claim == now.claim:
	case now != nil:
		c.volumeMoved(now)
	case old != nil:
		c.volumeMoved(old)
	}
}

func (c *Cache) observeCapacity(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncCapacity(key)
}

// syncCapacity needs mu.
func (c *Cache) syncCapacity(key string) {
	c.last = nil
	o := get[storagev1.CSIStorageCapacity](c.stores.capacities, key)
	if o == nil {
		if old, known := c.ledger.objects[key]; known {
			c.capacityChanged(old.class, key, "", old.place)
		}
		c.ledger.deleteCapacity(key)
		return
	}
	f := c.ledger.places.factsOf(key, o)
	if f.allocation == volume.Unnumbered {
		if pool, shared := sharedPool(c.sharing, c.Class(f.class), f.place); shared {
			f.pool = pool
		}
	}
	c.ledger.setCapacity(f)
	c.capacityChanged(f.class, key, f.version, f.place)
}

// observeClass: a class that appears late may change the pool of its objects.
func (c *Cache) observeClass(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range maps.Clone(c.ledger.ofClass[name]) {
		c.syncCapacity(key)
	}
}

func (c *Cache) observeCSINode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncCSINode(name)
	c.waiters.poke(NodeKey(name))
	c.wakeRun()
}

func (c *Cache) observeAttachment(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncAttachment(name)
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
	if n := get[corev1.Node](c.stores.nodes, name); n != nil {
		c.ledger.setNode(name, n.Labels)
		return
	}
	c.ledger.deleteNode(name)
	c.forgetOccupancy(name)
	c.limits.forget(name)
	c.shareLimits()
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
