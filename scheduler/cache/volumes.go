package cache

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// volumes knows every PersistentVolume: which are free to match, which is
// reserved for which claim, and what this scheduler has decided and not yet
// seen in the informer. It has no lock; Cache gives it one.
type volumes struct {
	byName map[string]*volumeEntry
	places places
	// free holds what a claim may take, smallest first.
	free *index[kind, *binding.Volume]
	// reserved: claim key → names of volumes whose claimRef names it, or that are
	// assumed for it.
	reserved map[string]map[string]struct{}
	assumed  map[string]*assumption
}

// kind is what a volume and a claim must agree on: class, volume mode,
// attributes class, and the claim's access modes among the volume's.
type kind struct {
	class, attributes string
	block             bool
	modes             accessModes
}

// accessModes is a set, one bit a mode.
type accessModes uint8

func modesOf(list []corev1.PersistentVolumeAccessMode) accessModes {
	var out accessModes
	for _, m := range list {
		switch m {
		case corev1.ReadWriteOnce:
			out |= 1
		case corev1.ReadOnlyMany:
			out |= 2
		case corev1.ReadWriteMany:
			out |= 4
		case corev1.ReadWriteOncePod:
			out |= 8
		default:
			// A mode that does not exist yet: no volume is known to have it.
			out |= 16
		}
	}
	return out
}

// has reports whether all of the other's modes are in the set.
func (m accessModes) has(other accessModes) bool { return m&other == other && other&16 == 0 }

// volumeEntry is a PersistentVolume, read once.
type volumeEntry struct {
	binding.Volume
	version string
	place   *place
	// moved is the place of InTree, nil without.
	moved *place
	// claim and claimUID are the claimRef; claimUID may be empty where a
	// person reserved the volume.
	claim, claimUID string
	// available is phase Available, deleting a deletionTimestamp.
	available, deleting bool
	kind                kind
	// key is the volume as its CSI driver knows it, translated for a plugin that
	// a driver took over; empty where no driver serves it.
	key volume.Key
}

// assumption is a volume given to a claim by Reserve. Like upstream's passive
// assume cache it is laid over the informer's object and ends with it: here
// when the informer's volume has a claimRef, or is newer than what was written, and
// no pod's bind is at work on it.
// Another change of the volume (a label, a resync) does not end it, as it does
// upstream: the volume is still promised.
type assumption struct {
	uid, claim, claimUID string
	owners               map[string]struct{}
	written              string
}

// counted: the volume has its claimRef, the PV controller has not begun, and pods
// of the claim count on it. Another pod, which reserved it, may still give it back.
func (a *assumption) counted(e *volumeEntry) bool {
	return e.available && e.claimUID == a.claimUID && len(a.owners) > 0
}

// overtaken: the informer's volume says more than the assumption.
func (a *assumption) overtaken(e *volumeEntry) bool {
	return (e.claim != "" && e.claimUID != "" || a.written != "" && atLeast(e.version, a.written)) && !a.counted(e)
}

func newVolumes(all places) *volumes {
	return &volumes{
		byName: map[string]*volumeEntry{}, places: all, free: newIndex[kind, *binding.Volume](all.atlas),
		reserved: map[string]map[string]struct{}{}, assumed: map[string]*assumption{},
	}
}

// entry reads a volume. Its places are held until release.
func (v *volumes) entry(pv *corev1.PersistentVolume) *volumeEntry {
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	e := &volumeEntry{
		Volume: binding.Volume{
			Name: pv.Name, UID: string(pv.UID), Class: volumeClass(pv), Capacity: volume.Bytes(capacity),
			Block:       pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock,
			AccessModes: pv.Spec.AccessModes, Labels: pv.Labels,
		},
		version: pv.ResourceVersion, place: v.places.ofVolume(pv.Spec.NodeAffinity),
		available: pv.Status.Phase == corev1.VolumeAvailable, deleting: pv.DeletionTimestamp != nil,
	}
	if pv.Spec.VolumeAttributesClassName != nil {
		e.AttributesClass = *pv.Spec.VolumeAttributesClassName
	}
	e.Place = e.place
	e.kind = kind{class: e.Class, attributes: e.AttributesClass, block: e.Block, modes: modesOf(pv.Spec.AccessModes)}
	if ref := pv.Spec.ClaimRef; ref != nil {
		e.claim, e.claimUID = ref.Namespace+"/"+ref.Name, string(ref.UID)
	}
	if pv.Spec.CSI != nil {
		e.key = volume.Key{Driver: pv.Spec.CSI.Driver, Handle: pv.Spec.CSI.VolumeHandle}
		return e
	}
	if m := translate(pv); m != nil {
		e.InTree = &binding.InTree{Plugin: m.plugin, Err: m.err}
		e.key = m.key
		if m.err == nil {
			e.moved = v.places.ofVolume(m.affinity)
			e.InTree.Place = e.moved
		}
	}
	return e
}

// release gives up an entry's places.
func (v *volumes) release(e *volumeEntry) {
	v.places.release(e.place)
	if e.moved != nil {
		v.places.release(e.moved)
	}
}

// volumeClass: the beta annotation wins (component-helpers, GetPersistentVolumeClass).
func volumeClass(pv *corev1.PersistentVolume) string {
	if name, ok := pv.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	return pv.Spec.StorageClassName
}

func (v *volumes) set(pv *corev1.PersistentVolume) {
	e := v.entry(pv)
	v.drop(pv.Name)
	if old := v.byName[pv.Name]; old != nil {
		v.release(old)
	}
	v.byName[pv.Name] = e
	if a := v.assumed[pv.Name]; a != nil {
		if a.overtaken(e) || a.uid != e.UID {
			delete(v.assumed, pv.Name)
		}
	}
	v.list(e)
}

func (v *volumes) delete(name string) {
	v.drop(name)
	if old := v.byName[name]; old != nil {
		v.release(old)
	}
	delete(v.byName, name)
	delete(v.assumed, name)
}

// list enters a volume where its effective state puts it.
func (v *volumes) list(e *volumeEntry) {
	claim := e.claim
	if a := v.assumed[e.Name]; a != nil {
		claim = a.claim
	}
	switch {
	case e.deleting:
	case claim != "":
		add(v.reserved, claim, e.Name)
	case e.available:
		v.free.set(e.kind, e.place, e.Capacity, e.Name, &e.Volume)
	}
}

// drop takes a volume off every list.
func (v *volumes) drop(name string) {
	e := v.byName[name]
	if e == nil {
		return
	}
	v.free.delete(e.kind, e.place, e.Capacity, e.Name)
	if e.claim != "" {
		remove(v.reserved, e.claim, name)
	}
	if a := v.assumed[name]; a != nil {
		remove(v.reserved, a.claim, name)
	}
}

// relist changes a volume's assumption and lists it anew.
func (v *volumes) relist(name string, change func()) {
	v.drop(name)
	change()
	if e := v.byName[name]; e != nil {
		v.list(e)
	}
}

// reservedFor is the volume that waits for the claim and can serve it, nil for
// none. Of several it is the first by name, so that every node gets the same answer.
func (v *volumes) reservedFor(claim *binding.Claim) *binding.Volume {
	var first *volumeEntry
	for name := range v.reserved[claim.Key] {
		e := v.byName[name]
		owner := e.claimUID
		if a := v.assumed[name]; a != nil {
			owner = a.claimUID
		}
		if owner != "" && owner != claim.UID || !claim.Admits(&e.Volume) {
			continue
		}
		if first == nil || strings.Compare(name, first.Name) < 0 {
			first = e
		}
	}
	if first == nil {
		return nil
	}
	return &first.Volume
}

// assume gives a volume to a claim for a pod. It fails where the volume is no
// longer what the verdict saw: gone, another of its name, or taken.
func (v *volumes) assume(b binding.Bind, owner string) error {
	e := v.byName[b.Volume]
	switch {
	case e == nil || e.UID != b.VolumeUID:
		return fmt.Errorf("persistent volume %s is gone", b.Volume)
	case e.deleting:
		return fmt.Errorf("persistent volume %s is being deleted", b.Volume)
	case e.claim != "" && (e.claim != b.Claim || e.claimUID != "" && e.claimUID != b.ClaimUID):
		return fmt.Errorf("persistent volume %s is taken by claim %s", b.Volume, e.claim)
	}
	a := v.assumed[b.Volume]
	if a == nil {
		a = &assumption{uid: e.UID, claim: b.Claim, claimUID: b.ClaimUID, owners: map[string]struct{}{}}
		v.relist(b.Volume, func() { v.assumed[b.Volume] = a })
	}
	if a.claimUID != b.ClaimUID {
		return fmt.Errorf("persistent volume %s is taken by claim %s", b.Volume, a.claim)
	}
	a.owners[owner] = struct{}{}
	return nil
}

// forget ends a pod's part in an assumption. One that is written stays until
// the informer shows it.
func (v *volumes) forget(name, owner string) {
	a := v.assumed[name]
	if a == nil {
		return
	}
	if _, mine := a.owners[owner]; !mine {
		return
	}
	delete(a.owners, owner)
	e := v.byName[name]
	if len(a.owners) == 0 && (a.written == "" || e == nil || a.overtaken(e)) {
		v.relist(name, func() { delete(v.assumed, name) })
	}
}

// written notes the version of the volume that carries the claimRef.
func (v *volumes) written(name, version string) {
	a, e := v.assumed[name], v.byName[name]
	if a == nil || e == nil {
		return
	}
	a.written = version
	if a.overtaken(e) {
		v.relist(name, func() { delete(v.assumed, name) })
	}
}

// volumeShelf is the groups of volumes that a claim could take. It implements
// binding.Shelf.
type volumeShelf []of[*binding.Volume]

// shelf finds the groups once for a claim.
func shelf(free *index[kind, *binding.Volume], c *binding.Claim) volumeShelf {
	var out volumeShelf
	want := modesOf(c.AccessModes)
	for k := range free.groups {
		if k.class == c.Class.Name && k.block == c.Block && k.attributes == c.AttributesClass && k.modes.has(want) {
			out = append(out, free.of(k))
		}
	}
	return out
}

// Ascend implements binding.Shelf.
func (s volumeShelf) Ascend(node *binding.Node, capacity int64, take binding.Taker) {
	for _, g := range s {
		g.reach(node, capacity, func(v **binding.Volume) bool { return take.Take(*v) })
	}
}
