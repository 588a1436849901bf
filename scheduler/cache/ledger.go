package cache

import (
	"maps"
	"slices"
	"time"

	"github.com/berth-storage/berth/scheduler/binding"
)

// ledger knows what every capacity object really has left. It takes the newest
// state of each object, in any order, and keeps an index of segments whose
// Available already has the holds subtracted, so that a decision only reads.
//
// Invariant: for every object, Available = capacity − pending holds that may
// land on its pool − volumes of the pool numbered above it − settling volumes
// that it does not contain. refresh is the only writer of the index.
//
// It has no lock and no clock; Cache gives it both.
type ledger struct {
	segments *index[string, binding.Segment]
	// places holds the topologies of objects.
	places  places
	objects map[string]capacityFacts
	// ofClass: class → keys of its objects.
	ofClass map[string]map[string]struct{}
	pools   map[string]*pool
	// pairs counts, for two classes, the pools that have objects of both.
	pairs map[[2]string]int
	// holds by claim UID; byClass and byNode are the same holds, for the
	// events that change where they may land.
	holds   map[string]*hold
	byClass map[string]map[string]struct{}
	byNode  map[string]map[string]struct{}
	// volumes by name; volumesOf: claim UID → names of volumes whose claimRef has it.
	volumes   map[string]volumeFacts
	volumesOf map[string]map[string]struct{}
	// nodes: name → labels. A node that is gone keeps its last labels while
	// holds are on it.
	nodes map[string]map[string]string
	gone  map[string]struct{}

	// settlements by volume; deadlines are theirs, by settlementKey, and those of
	// uncertain reservations, by claim UID.
	settlements map[string]*settlement
	deadlines   map[string]time.Time
	// grace bounds what only an event can end, where that event may not come.
	grace time.Duration
}

func newLedger(grace time.Duration, all places) *ledger {
	return &ledger{
		segments: newIndex[string, binding.Segment](all.atlas), places: all,
		objects: map[string]capacityFacts{}, ofClass: map[string]map[string]struct{}{}, pools: map[string]*pool{}, pairs: map[[2]string]int{},
		holds: map[string]*hold{}, byClass: map[string]map[string]struct{}{}, byNode: map[string]map[string]struct{}{},
		volumes: map[string]volumeFacts{}, volumesOf: map[string]map[string]struct{}{},
		nodes: map[string]map[string]string{}, gone: map[string]struct{}{},
		settlements: map[string]*settlement{}, deadlines: map[string]time.Time{}, grace: grace,
	}
}

// setNode takes a node's labels. It reports whether they are others, or the node
// was gone.
func (l *ledger) setNode(name string, labels map[string]string) bool {
	_, back := l.gone[name]
	delete(l.gone, name)
	if old, known := l.nodes[name]; known && !back && maps.Equal(old, labels) {
		return false
	}
	l.nodes[name] = labels
	l.place(slices.Collect(maps.Keys(l.byNode[name])))
	return true
}

func (l *ledger) deleteNode(name string) {
	if len(l.byNode[name]) > 0 {
		l.gone[name] = struct{}{}
		return
	}
	delete(l.nodes, name)
}

// setCapacity takes a capacity object.
func (l *ledger) setCapacity(o capacityFacts) {
	old, known := l.objects[o.key]
	same := known && old.class == o.class && old.pool == o.pool && old.place.id == o.place.id && old.empty == o.empty
	switch {
	case same:
		l.places.release(old.place)
	case known:
		l.removeObject(old)
	}
	l.objects[o.key] = o
	add(l.ofClass, o.class, o.key)
	if !same {
		l.pair(o, 1)
	}
	l.pool(o.pool).objects[o.key] = o
	l.refresh(o.pool)
	if same {
		return
	}
	if known && old.class != o.class {
		// Another object of the name.
		l.place(slices.Collect(maps.Keys(l.byClass[old.class])))
	}
	l.place(slices.Collect(maps.Keys(l.byClass[o.class])))
}

func (l *ledger) deleteCapacity(key string) {
	if old, known := l.objects[key]; known {
		l.removeObject(old)
		l.place(slices.Collect(maps.Keys(l.byClass[old.class])))
	}
}

func (l *ledger) removeObject(o capacityFacts) {
	delete(l.objects, o.key)
	remove(l.ofClass, o.class, o.key)
	l.segments.delete(o.class, o.place, 0, o.key)
	l.places.release(o.place)
	delete(l.pool(o.pool).objects, o.key)
	l.pair(o, -1)
	l.refresh(o.pool)
}

// pair counts an object against the others of its pool, itself not among them.
func (l *ledger) pair(o capacityFacts, by int) {
	for _, other := range l.pool(o.pool).objects {
		if other.class == o.class {
			continue
		}
		for _, p := range [][2]string{{o.class, other.class}, {other.class, o.class}} {
			if l.pairs[p] += by; l.pairs[p] == 0 {
				delete(l.pairs, p)
			}
		}
	}
}

// setVolume takes a PersistentVolume.
func (l *ledger) setVolume(v volumeFacts) {
	old, known := l.volumes[v.name]
	if known && old == v {
		return
	}
	if known {
		l.forgetVolume(old)
		if old.claimUID != v.claimUID {
			// The claim that it leaves awaits a volume again.
			l.place([]string{old.claimUID})
		}
	}
	l.volumes[v.name] = v
	if v.pool != "" {
		l.pool(v.pool).addVolume(v)
		l.refresh(v.pool)
	}
	if v.claimUID == "" {
		return
	}
	had := len(l.volumesOf[v.claimUID]) > 0
	add(l.volumesOf, v.claimUID, v.name)
	if h := l.holds[v.claimUID]; h != nil {
		h.gone = ""
		if !had && !known {
			l.settle(h, v)
		}
		l.place([]string{v.claimUID})
	}
}

// deleteVolume drops a volume and every trace of its bytes: what it occupied
// was free in the capacity that did not contain it.
func (l *ledger) deleteVolume(name string) {
	v, known := l.volumes[name]
	if !known {
		return
	}
	l.forgetVolume(v)
	l.endSettlement(name)
	if h := l.holds[v.claimUID]; h != nil {
		h.gone = name
		l.place([]string{v.claimUID})
	}
}

func (l *ledger) forgetVolume(v volumeFacts) {
	delete(l.volumes, v.name)
	if v.pool != "" {
		l.pool(v.pool).removeVolume(v.name)
		l.refresh(v.pool)
	}
	remove(l.volumesOf, v.claimUID, v.name)
}

// setClaim takes a claim. One that is neither selected nor reserved holds
// nothing and is not kept.
func (l *ledger) setClaim(c claimFacts) {
	h := l.holds[c.uid]
	if h == nil {
		if c.selected == "" {
			return
		}
		h = &hold{}
		l.holds[c.uid] = h
	}
	h.claim = c
	h.settleReservation()
	l.place([]string{c.uid})
}

// knows reports whether setClaim would change nothing.
func (l *ledger) knows(c claimFacts) bool {
	if h := l.holds[c.uid]; h != nil {
		return h.claim == c
	}
	return c.selected == ""
}

// deleteClaim ends the claim's hold. Its volume, if known, is counted by its
// number until it is deleted or published.
func (l *ledger) deleteClaim(uid string) {
	if h := l.holds[uid]; h != nil {
		h.claim.selected, h.reserved = "", nil
		l.place([]string{uid})
	}
}

// pool returns a pool, made where it is new.
func (l *ledger) pool(id string) *pool {
	p := l.pools[id]
	if p == nil {
		p = newPool()
		l.pools[id] = p
	}
	return p
}

// refresh publishes the segments of a pool.
func (l *ledger) refresh(id string) {
	p := l.pools[id]
	if p == nil {
		return
	}
	for _, o := range p.objects {
		if o.empty {
			l.segments.delete(o.class, o.place, 0, o.key)
			continue
		}
		l.segments.set(o.class, o.place, 0, o.key, p.segment(o))
	}
	if p.unused() {
		delete(l.pools, id)
	}
}
