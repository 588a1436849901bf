package cache

import (
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// Tenants are the pods of one node as the scheduler has them in its own
// snapshot, assumed ones included.
type Tenants struct {
	Node string
	// Generation is another one whenever the pods are (fwk.NodeInfo).
	Generation int64
	Pods       iter.Seq[*corev1.Pod]
}

// Occupancy is what is attached to a node, or will be, each volume once. It
// implements binding.Occupancy and never changes.
type Occupancy struct {
	generation int64
	// pods are the volumes of the node's pods; left are those that are attached
	// and that none of these pods has.
	pods, left map[volume.Key]struct{}
	used       []driverCount
}

type driverCount struct {
	driver string
	count  int64
}

// Has implements binding.Occupancy.
func (o *Occupancy) Has(k volume.Key) bool {
	if _, ok := o.pods[k]; ok {
		return true
	}
	_, ok := o.left[k]
	return ok
}

// Used implements binding.Occupancy.
func (o *Occupancy) Used(driver string) int64 {
	for _, d := range o.used {
		if d.driver == driver {
			return d.count
		}
	}
	return 0
}

func (o *Occupancy) count(k volume.Key) {
	for i := range o.used {
		if o.used[i].driver == k.Driver {
			o.used[i].count++
			return
		}
	}
	o.used = append(o.used, driverCount{k.Driver, 1})
}

// attachments knows which volumes are attached where, and remembers the
// occupancy of every node until something of it changes. It has no lock; Cache
// gives it one.
type attachments struct {
	// at: node → name of the VolumeAttachment → what it attaches.
	at map[string]map[string]attachment
	// nodesOf: PersistentVolume → nodes that it is attached to.
	nodesOf map[string]map[string]struct{}
	// where: name of the VolumeAttachment → its node.
	where map[string]string
	// tenants: node → pod → its volumes, as they were read last. Objects never
	// change, so a pod that is still there need not be read again until a claim of
	// its own moves.
	tenants map[string]map[*corev1.Pod][]tenantVolume
	// claimOn: claim → node → how many of its tenants have the claim.
	claimOn map[string]map[string]int
}

func newAttachments() attachments {
	return attachments{
		at: map[string]map[string]attachment{}, nodesOf: map[string]map[string]struct{}{},
		where: map[string]string{}, tenants: map[string]map[*corev1.Pod][]tenantVolume{}, claimOn: map[string]map[string]int{},
	}
}

func attachmentOf(va *storagev1.VolumeAttachment) attachment {
	a := attachment{driver: va.Spec.Attacher}
	switch source := &va.Spec.Source; {
	case source.PersistentVolumeName != nil:
		a.pv = *source.PersistentVolumeName
	case source.InlineVolumeSpec != nil && source.InlineVolumeSpec.CSI != nil:
		a.handle = source.InlineVolumeSpec.CSI.VolumeHandle
	}
	return a
}

// syncAttachment needs mu.
func (c *Cache) syncAttachment(name string) {
	a := &c.attachments
	if node, known := a.where[name]; known {
		pv := a.at[node][name].pv
		delete(a.at[node], name)
		if !slices.ContainsFunc(slices.Collect(maps.Values(a.at[node])), func(o attachment) bool { return o.pv == pv }) {
			remove(a.nodesOf, pv, node)
		}
		if len(a.at[node]) == 0 {
			delete(a.at, node)
		}
		delete(a.where, name)
		c.forgetOccupancy(node)
	}
	va := get[storagev1.VolumeAttachment](c.stores.attachments, name)
	if va == nil || va.Spec.Attacher == "" {
		return
	}
	node, what := va.Spec.NodeName, attachmentOf(va)
	if a.at[node] == nil {
		a.at[node] = map[string]attachment{}
	}
	a.at[node][name] = what
	a.where[name] = node
	add(a.nodesOf, what.pv, node)
	c.forgetOccupancy(node)
}

// forgetOccupancy lets a node be counted anew. It needs mu.
func (c *Cache) forgetOccupancy(node string) { c.occupied.Delete(node) }

// volumeMoved forgets what was made from a volume that appeared, went or became
// another. It needs mu.
func (c *Cache) volumeMoved(e *volumeEntry) {
	for node := range c.attachments.nodesOf[e.Name] {
		c.forgetOccupancy(node)
	}
	for claim := range c.naming[e.Name] {
		c.claimMoved(claim)
	}
}

// Occupancy is what the node has with these pods. It is remembered, so that
// asking again costs a look-up until the pods, their claims or the attachments
// change.
func (c *Cache) Occupancy(t Tenants) *Occupancy {
	if o, ok := c.remembered(t); ok {
		return o
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Of a node that is gone, or a simulation's, nobody would tell when to forget.
	known := get[corev1.Node](c.stores.nodes, t.Node) != nil
	if known {
		c.settleTenants(t)
	}
	o := c.occupancy(t)
	for _, a := range c.attachments.at[t.Node] {
		if k := c.attachedKey(a); !o.Has(k) {
			o.left[k] = struct{}{}
			o.count(k)
		}
	}
	if known {
		c.occupied.Store(t.Node, o)
	}
	return o
}

// Remembers reports whether Occupancy has the answer for these pods at hand:
// they are then the pods of the scheduler's snapshot.
func (c *Cache) Remembers(t Tenants) bool {
	_, ok := c.remembered(t)
	return ok
}

func (c *Cache) remembered(t Tenants) (*Occupancy, bool) {
	if o, ok := c.occupied.Load(t.Node); ok && o.(*Occupancy).generation == t.Generation {
		return o.(*Occupancy), true
	}
	return nil, false
}

// WhatIf is what the node would have with other pods than base was made from:
// the dry run of a preemption, or a nominated pod. A volume that is attached for
// a pod of base goes with it; one that is attached for none stays.
func (c *Cache) WhatIf(base *Occupancy, t Tenants) *Occupancy {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.occupancy(t)
	for k := range base.left {
		if !o.Has(k) {
			o.left[k] = struct{}{}
			o.count(k)
		}
	}
	return o
}

// occupancy counts the volumes of pods. It needs mu.
func (c *Cache) occupancy(t Tenants) *Occupancy {
	o := &Occupancy{generation: t.Generation, pods: map[volume.Key]struct{}{}, left: map[volume.Key]struct{}{}}
	for pod := range t.Pods {
		for _, v := range c.read(t.Node, pod) {
			if _, twice := o.pods[v.key]; v.attaches && !twice {
				o.pods[v.key] = struct{}{}
				o.count(v.key)
			}
		}
	}
	return o
}

// claimKey is the volume that a claim stands for: its CSI volume once it is
// bound, before that a stand-in under its class's driver. migrated: a plugin's,
// which counts only where the node has a CSINode. It needs mu.
func (c *Cache) claimKey(pvc *corev1.PersistentVolumeClaim) (key volume.Key, migrated, ok bool) {
	if e := c.volumes.byName[pvc.Spec.VolumeName]; e != nil {
		return e.key, e.InTree != nil, e.key.Driver != ""
	}
	class := c.Class(binding.ClassName(pvc))
	if class == nil || class.Provisioner == "" || class.Provisioner == volume.NoProvisioner {
		return volume.Key{}, false, false
	}
	driver, migrated := driverOf(class.Provisioner)
	return volume.Key{Driver: driver, Handle: "claim " + string(pvc.UID)}, migrated, driver != ""
}

// attachedKey is the volume of an attachment. One whose PersistentVolume is gone
// still takes its place on the node. It needs mu.
func (c *Cache) attachedKey(a attachment) volume.Key {
	switch e := c.volumes.byName[a.pv]; {
	case a.pv == "":
		return volume.Key{Driver: a.driver, Handle: a.handle}
	case e == nil || e.key.Handle == "":
		return volume.Key{Driver: a.driver, Handle: "volume " + a.pv}
	default:
		return volume.Key{Driver: a.driver, Handle: e.key.Handle}
	}
}

// Wanted are the volumes that a pod brings to a node, each once: those that count
// on every node, then also those that count only where the node has a CSINode.
func (c *Cache) Wanted(pod *corev1.Pod, pvcs []*corev1.PersistentVolumeClaim) (everywhere, all []volume.Key) {
	c.loaded.Do(c.load)
	c.mu.Lock()
	defer c.mu.Unlock()
	include := func(list []volume.Key, k volume.Key) []volume.Key {
		if slices.Contains(list, k) {
			return list
		}
		return append(list, k)
	}
	var moved []volume.Key
	for _, pvc := range pvcs {
		key, migrated, ok := c.claimKey(pvc)
		switch {
		case !ok:
		case migrated:
			moved = include(moved, key)
		default:
			everywhere = include(everywhere, key)
		}
	}
	for i := range pod.Spec.Volumes {
		if key, ok := inlineKey(&pod.Spec.Volumes[i], pod.Namespace); ok {
			moved = include(moved, key)
		}
	}
	all = slices.Clip(everywhere)
	for _, k := range moved {
		all = include(all, k)
	}
	return everywhere, all
}

// HasInline reports whether the pod has a volume that counts against attach
// limits and needs no claim.
func HasInline(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if _, ok := inlineKey(&pod.Spec.Volumes[i], pod.Namespace); ok {
			return true
		}
	}
	return false
}
