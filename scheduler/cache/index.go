package cache

import (
	"maps"
	"slices"

	"github.com/berth-storage/berth/scheduler/binding"
)

// index finds what a node reaches, by group, without looking at what it does
// not: for each ground that the group's places use, one look at the node's own
// number there; and one test for each distinct place that names no values.
//
// It copies on write: snapshot is O(1), and a snapshot may be read by many
// goroutines while its original is written.
type index[G comparable, T any] struct {
	// epoch is of the last snapshot; what is of an older one may be read by it.
	epoch uint64
	// groups is replaced where a snapshot reads it.
	groups map[G]*group[T]
	shared bool
	atlas  *atlas
}

// group is the items of one kind. It is replaced as a whole where a snapshot
// reads it; that copies the slices of shapes and loose, which are short.
type group[T any] struct {
	epoch  uint64
	shapes []shape[T]
	loose  []looseList[T]
}

// shape is a ground, and the items at each number of it.
type shape[T any] struct {
	ground int
	spots  *pages[list[T]]
	// filled counts the numbers that have items.
	filled int
}

// looseList is the items of one place that names no values.
type looseList[T any] struct {
	place *place
	items list[T]
}

// newIndex makes an index of places that the atlas settles.
func newIndex[G comparable, T any](a *atlas) *index[G, T] {
	return &index[G, T]{groups: map[G]*group[T]{}, atlas: a}
}

// snapshot is a view that later writes do not change. It must not be written.
// The atlas is a snapshot of the same moment.
func (x *index[G, T]) snapshot(a *atlas) *index[G, T] {
	x.epoch++
	x.shared = true
	return &index[G, T]{groups: x.groups, atlas: a}
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
	at := slices.IndexFunc(g.shapes, func(sh shape[T]) bool { return sh.ground == s.ground })
	if at < 0 {
		g.shapes = append(g.shapes, shape[T]{ground: s.ground})
		at = len(g.shapes) - 1
	}
	sh := &g.shapes[at]
	sh.spots = sh.spots.own(epoch)
	l := sh.spots.at(s.number)
	if !l.empty() {
		sh.filled--
	}
	if *l = change(*l); !l.empty() {
		sh.filled++
	}
	if sh.filled == 0 {
		g.shapes = slices.Delete(g.shapes, at, at+1)
	}
}

// of is what an index has of one group, and how nodes find it.
type of[T any] struct {
	group *group[T]
	atlas *atlas
}

func (x *index[G, T]) of(key G) of[T] { return of[T]{x.groups[key], x.atlas} }

// reach visits the items that the node reaches, each list from the size on;
// visit answers false to end one list, and must not change an item. An item with several spots may be met
// more than once.
func (o of[T]) reach(node *binding.Node, size int64, visit func(*T) bool) {
	if o.group == nil {
		return
	}
	each := func(e *entry[T]) bool {
		if e.place != nil && !e.place.Matches(node) {
			return true
		}
		return visit(&e.value)
	}
	row := rowOf(node)
	for i := range o.group.shapes {
		sh := &o.group.shapes[i]
		if l := sh.spots.get(o.atlas.number(sh.ground, row, node)); l != nil {
			l.ascend(size, each)
		}
	}
	for i := range o.group.loose {
		if o.group.loose[i].place.Matches(node) {
			o.group.loose[i].items.ascend(size, each)
		}
	}
}
