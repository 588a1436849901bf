package cache

import (
	"maps"
	"slices"

	"github.com/berth-storage/berth/scheduler/binding"
)

// index finds what a node reaches, by group, without looking at what it does
// not: for each set of label keys that the group's places use, one look at the
// node's own values; and one test for each distinct place that names no values.
//
// It copies on write: snapshot is O(1), and a snapshot may be read by many
// goroutines while its original is written.
type index[G comparable, T any] struct {
	// epoch is of the last snapshot; what is of an older one may be read by it.
	epoch uint64
	// groups is replaced where a snapshot reads it.
	groups map[G]*group[T]
	shared bool
}

// group is the items of one kind. It is replaced as a whole where a snapshot
// reads it; that copies the slices of shapes and loose, which are short.
type group[T any] struct {
	epoch  uint64
	shapes []shape[T]
	loose  []looseList[T]
}

// shape is a set of label keys, and the items at each tuple of their values.
type shape[T any] struct {
	keys  []string
	spots *trie[list[T]]
}

// looseList is the items of one place that names no values.
type looseList[T any] struct {
	place *place
	items list[T]
}

func newIndex[G comparable, T any]() *index[G, T] {
	return &index[G, T]{groups: map[G]*group[T]{}}
}

// snapshot is a view that later writes do not change. It must not be written.
func (x *index[G, T]) snapshot() *index[G, T] {
	x.epoch++
	x.shared = true
	return &index[G, T]{groups: x.groups}
}

// own makes a group writable; nil where it is not there and make is false.
func (x *index[G, T]) own(key G, create bool) *group[T] {
	g := x.groups[key]
	switch {
	case g == nil && !create:
		return nil
	case g != nil && g.epoch == x.epoch:
		return g
	case g == nil:
		g = &group[T]{epoch: x.epoch}
	default:
		g = &group[T]{epoch: x.epoch, shapes: slices.Clone(g.shapes), loose: slices.Clone(g.loose)}
	}
	if x.shared {
		x.groups, x.shared = maps.Clone(x.groups), false
	}
	x.groups[key] = g
	return g
}

// set adds or replaces an item, which size and id order within one place.
func (x *index[G, T]) set(key G, p *place, size int64, id string, value T) {
	g := x.own(key, true)
	e := entry[T]{size: size, id: id, value: value}
	if p.loose {
		g.setLoose(p, func(l list[T]) list[T] { return l.with(e) })
		return
	}
	if p.test != nil {
		e.place = p
	}
	for i := range p.spots {
		g.setSpot(&p.spots[i], x.epoch, func(l list[T]) list[T] { return l.with(e) })
	}
}

func (x *index[G, T]) delete(key G, p *place, size int64, id string) {
	g := x.own(key, false)
	if g == nil {
		return
	}
	drop := func(l list[T]) list[T] { return l.without(size, id) }
	if p.loose {
		g.setLoose(p, drop)
	}
	for i := range p.spots {
		g.setSpot(&p.spots[i], x.epoch, drop)
	}
	if len(g.shapes) == 0 && len(g.loose) == 0 {
		// own has made groups writable.
		delete(x.groups, key)
	}
}

func (g *group[T]) setLoose(p *place, change func(list[T]) list[T]) {
	at := slices.IndexFunc(g.loose, func(l looseList[T]) bool { return l.place == p })
	if at < 0 {
		g.loose = append(g.loose, looseList[T]{place: p})
		at = len(g.loose) - 1
	}
	if g.loose[at].items = change(g.loose[at].items); g.loose[at].items.empty() {
		g.loose = slices.Delete(g.loose, at, at+1)
	}
}

func (g *group[T]) setSpot(s *spot, epoch uint64, change func(list[T]) list[T]) {
	at := slices.IndexFunc(g.shapes, func(sh shape[T]) bool { return equal(sh.keys, s.keys) })
	if at < 0 {
		g.shapes = append(g.shapes, shape[T]{keys: s.keys})
		at = len(g.shapes) - 1
	}
	sh := &g.shapes[at]
	sh.spots = sh.spots.own(epoch)
	var l list[T]
	if old := sh.spots.get(s.values); old != nil {
		l = *old
	}
	if l = change(l); l.empty() {
		sh.spots.delete(s.values)
	} else {
		sh.spots.set(s.values, l)
	}
	if sh.spots.size == 0 {
		g.shapes = slices.Delete(g.shapes, at, at+1)
	}
}

// reach visits the items that the node reaches, each list from the size on;
// visit answers false to end one list. An item with several spots may be met
// more than once.
func (g *group[T]) reach(node *binding.Node, size int64, visit func(T) bool) {
	each := func(e *entry[T]) bool {
		if e.place != nil && !e.place.Matches(node) {
			return true
		}
		return visit(e.value)
	}
	for i := range g.shapes {
		if l := g.shapes[i].spots.at(g.shapes[i].keys, node); l != nil {
			l.ascend(size, each)
		}
	}
	for i := range g.loose {
		if g.loose[i].place.Matches(node) {
			g.loose[i].items.ascend(size, each)
		}
	}
}
