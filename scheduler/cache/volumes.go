package cache

import (
	"fmt"
	"iter"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/binding"
)

// volumes knows every PersistentVolume: which are free to match, which is
// reserved for which claim, and what this scheduler has decided and not yet
// seen in the informer. It has no lock; Cache gives it one.
type volumes struct {
	byName map[string]*volumeEntry
	// free holds what a claim of the class may take, smallest first.
	free *index[*binding.Volume]
	// reserved: claim key → names of volumes whose claimRef names it.
	reserved map[string]map[string]struct{}
	assumed  map[string]*assumption
}

// volumeEntry is a PersistentVolume, read once.
type volumeEntry struct {
	binding.Volume
	version string
	place   *place
	// claim and claimUID are the claimRef; claimUID may be empty where a
	// person reserved the volume.
	claim, claimUID string
	// available is phase Available, deleting a deletionTimestamp.
	available, deleting bool
	driver, handle      string
}

// assumption is a volume given to a claim by Reserve. Like upstream's passive
// assume cache it is laid over the informer's object and ends with it: here
// when the informer's volume has a claimRef, or is newer than what was written.
// Another change of the volume (a label, a resync) does not end it, as it does
// upstream: the volume is still promised.
type assumption struct {
	uid, claim, claimUID string
	owners               map[string]struct{}
	written              string
}

func newVolumes() *volumes {
	return &volumes{
		byName: map[string]*volumeEntry{}, free: newIndex[*binding.Volume](),
		reserved: map[string]map[string]struct{}{}, assumed: map[string]*assumption{},
	}
}

func entryOf(pv *v1.PersistentVolume) *volumeEntry {
	capacity := pv.Spec.Capacity[v1.ResourceStorage]
	e := &volumeEntry{
		Volume: binding.Volume{
			Name: pv.Name, UID: string(pv.UID), Class: volumeClass(pv), Capacity: capacity.Value(),
			Block:       pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock,
			AccessModes: pv.Spec.AccessModes, Labels: pv.Labels,
		},
		version: pv.ResourceVersion, place: volumePlace(pv),
		available: pv.Status.Phase == v1.VolumeAvailable, deleting: pv.DeletionTimestamp != nil,
	}
	if pv.Spec.VolumeAttributesClassName != nil {
		e.AttributesClass = *pv.Spec.VolumeAttributesClassName
	}
	e.Place = e.place
	if ref := pv.Spec.ClaimRef; ref != nil {
		e.claim, e.claimUID = ref.Namespace+"/"+ref.Name, string(ref.UID)
	}
	if pv.Spec.CSI != nil {
		e.driver, e.handle = pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle
	}
	return e
}

// volumeClass: the beta annotation wins (component-helpers, GetPersistentVolumeClass).
func volumeClass(pv *v1.PersistentVolume) string {
	if name, ok := pv.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return name
	}
	return pv.Spec.StorageClassName
}

// id orders volumes of one place by capacity, then name.
func (e *volumeEntry) id() string { return capacityID(e.Capacity) + e.Name }

func capacityID(bytes int64) string { return fmt.Sprintf("%016x", max(bytes, 0)) }

func (v *volumes) set(pv *v1.PersistentVolume) {
	e := entryOf(pv)
	v.drop(pv.Name)
	v.byName[pv.Name] = e
	if a := v.assumed[pv.Name]; a != nil {
		overtaken := e.claim != "" && e.claimUID != "" || a.written != "" && atLeast(e.version, a.written)
		if overtaken || a.uid != e.UID {
			delete(v.assumed, pv.Name)
		}
	}
	v.list(e)
}

func (v *volumes) delete(name string) {
	v.drop(name)
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
		v.free.set(e.Class, e.place, e.id(), &e.Volume)
	}
}

// drop takes a volume off every list.
func (v *volumes) drop(name string) {
	e := v.byName[name]
	if e == nil {
		return
	}
	v.free.delete(e.Class, e.place, e.id())
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

// reservedFor is the volume that waits for the claim, nil for none. Of several
// it is the first by name, so that every node gets the same answer.
func (v *volumes) reservedFor(claim, uid string) *binding.Volume {
	var first *volumeEntry
	for name := range v.reserved[claim] {
		e := v.byName[name]
		owner := e.claimUID
		if a := v.assumed[name]; a != nil {
			owner = a.claimUID
		}
		if owner != "" && owner != uid {
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
	if len(a.owners) == 0 && a.written == "" {
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
	if e.claimUID != "" || atLeast(e.version, version) {
		v.relist(name, func() { delete(v.assumed, name) })
	}
}

// Shelf adapters for binding.

type volumeShelf struct{ shelf[*binding.Volume] }

// From implements binding.Shelf.
func (s volumeShelf) From(capacity int64) iter.Seq[*binding.Volume] {
	return s.from(capacityID(capacity))
}
