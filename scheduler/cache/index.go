package cache

import (
	"iter"
	"slices"
	"strings"

	"github.com/google/btree"

	"github.com/berth-storage/berth/scheduler/binding"
)

// index finds what a node reaches, by group (a StorageClass), without looking
// at what it does not: one tree search per shape of place that the group has,
// plus one evaluation per distinct predicate.
//
// It is a value that copies on write: snapshot is O(1), and a snapshot may be
// read by many goroutines while its original is written.
type index[T any] struct {
	tree *btree.BTreeG[*item[T]]
	// shapes of each group, with the number of items of each; the slices are
	// replaced, never changed. The map is the original's alone.
	shapes map[string][]shapeCount
	// frozen is what a snapshot reads: group → shapes.
	frozen map[string][]shapeCount
}

type shapeCount struct {
	name  string
	keys  []string
	count int
}

type item[T any] struct {
	group, shape, values, id string
	place                    *place
	value                    T
}

// lessItem orders by group, shape, values, id. Searching is what Filter spends
// its time on: items are pointers, and most comparisons end at the values.
func lessItem[T any](a, b *item[T]) bool {
	if a.group != b.group {
		return a.group < b.group
	}
	if a.shape != b.shape {
		return a.shape < b.shape
	}
	if n := strings.Compare(a.values, b.values); n != 0 {
		return n < 0
	}
	return a.id < b.id
}

const treeDegree = 16

func newIndex[T any]() *index[T] {
	return &index[T]{tree: btree.NewG(treeDegree, lessItem[T]), shapes: map[string][]shapeCount{}}
}

// set adds or replaces an item. id orders items within one place.
func (x *index[T]) set(group string, p *place, id string, value T) {
	if _, replaced := x.tree.ReplaceOrInsert(itemOf(group, p, id, value)); !replaced {
		x.count(group, p, 1)
	}
}

func (x *index[T]) delete(group string, p *place, id string) {
	var zero T
	if _, found := x.tree.Delete(itemOf(group, p, id, zero)); found {
		x.count(group, p, -1)
	}
}

func itemOf[T any](group string, p *place, id string, value T) *item[T] {
	values := p.values
	if p.matches != nil {
		values = p.text
	}
	return &item[T]{group: group, shape: p.shape(), values: values, id: id, place: p, value: value}
}

// count keeps the list of shapes of a group.
func (x *index[T]) count(group string, p *place, by int) {
	x.frozen = nil
	name := p.shape()
	shapes := slices.Clone(x.shapes[group])
	at := slices.IndexFunc(shapes, func(s shapeCount) bool { return s.name == name })
	if at < 0 {
		shapes = append(shapes, shapeCount{name: name, keys: p.keys})
		at = len(shapes) - 1
	}
	if shapes[at].count += by; shapes[at].count == 0 {
		shapes = slices.Delete(shapes, at, at+1)
	}
	if len(shapes) == 0 {
		delete(x.shapes, group)
		return
	}
	x.shapes[group] = shapes
}

// snapshot is a view that later writes do not change. It must not be written.
func (x *index[T]) snapshot() *index[T] {
	if x.frozen == nil {
		x.frozen = make(map[string][]shapeCount, len(x.shapes))
		for g, s := range x.shapes {
			x.frozen[g] = s
		}
	}
	return &index[T]{tree: x.tree.Clone(), shapes: x.frozen}
}

// shelf is the items of one group in one place.
type shelf[T any] struct {
	index                *index[T]
	group, shape, values string
}

// shelves returns the places of the group that the node lies in. One may be
// empty: finding out would cost the search that reading it costs.
func (x *index[T]) shelves(group string, node binding.Node) []shelf[T] {
	var out []shelf[T]
	for _, s := range x.shapes[group] {
		if s.name == predicateShape {
			out = x.predicates(out, group, node)
			continue
		}
		if values, ok := valuesOf(s.keys, node); ok {
			out = append(out, shelf[T]{x, group, s.name, values})
		}
	}
	return out
}

// predicates appends the shelves of the distinct predicates that hold. It steps
// from one predicate to the next, not over all their items.
func (x *index[T]) predicates(out []shelf[T], group string, node binding.Node) []shelf[T] {
	from := &item[T]{group: group, shape: predicateShape}
	for {
		var next *item[T]
		x.tree.AscendGreaterOrEqual(from, func(i *item[T]) bool {
			if i.group == group && i.shape == predicateShape {
				next = i
			}
			return false
		})
		if next == nil {
			return out
		}
		if next.place.Matches(node) {
			out = append(out, shelf[T]{x, group, predicateShape, next.values})
		}
		from = &item[T]{group: group, shape: predicateShape, values: next.values + "\x00"}
	}
}

// from yields the values of the shelf whose id is at least from, in order.
func (s shelf[T]) from(from string) iter.Seq[T] {
	return func(yield func(T) bool) {
		start := &item[T]{group: s.group, shape: s.shape, values: s.values, id: from}
		s.index.tree.AscendGreaterOrEqual(start, func(i *item[T]) bool {
			if i.group != s.group || i.shape != s.shape || i.values != s.values {
				return false
			}
			return yield(i.value)
		})
	}
}
