package cache

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-storage/berth/volume"
)

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

// sameObject is false where an update stands for a deletion and a namesake: a
// relist does not tell the two apart.
func sameObject(old, new any) bool {
	was, wasErr := meta.Accessor(old)
	is, isErr := meta.Accessor(new)
	return wasErr == nil && isErr == nil && was.GetUID() == is.GetUID()
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
			remove(c.naming, old.volume, key)
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
	remove(c.naming, old.volume, key)
	add(c.naming, now.volume, key)
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

// observeClass: a class that appears late may change the pool of its objects, and
// the driver of the claims that have no volume.
func (c *Cache) observeClass(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range maps.Clone(c.ledger.ofClass[name]) {
		c.syncCapacity(key)
	}
	for key, claim := range c.known {
		if claim.class == name {
			c.claimMoved(key)
		}
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
	if c.moveNode(name) {
		c.waiters.poke(NodeKey(name))
	}
}

// syncNode needs mu.
func (c *Cache) syncNode(name string) { c.moveNode(name) }

// moveNode reports whether the node is anywhere else than it was. A new object
// with equal labels leaves the last snapshot as it is: that looks the labels up.
func (c *Cache) moveNode(name string) bool {
	if n := get[corev1.Node](c.stores.nodes, name); n != nil {
		c.ledger.places.atlas.setNode(n)
		if !c.ledger.setNode(name, n.Labels) {
			return false
		}
		c.last = nil
		return true
	}
	c.last = nil
	c.ledger.places.atlas.deleteNode(name)
	c.ledger.deleteNode(name)
	c.forgetTenants(name)
	c.limits.forget(name)
	c.shareLimits()
	return true
}

func (c *Cache) observePod(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters.poke(PodKey(key))
}
