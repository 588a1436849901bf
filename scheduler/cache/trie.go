package cache

import (
	"hash/maphash"

	"github.com/berth-storage/berth/scheduler/binding"
)

// trie finds what belongs to the values that a node has under certain keys. It
// copies on write: a part that a snapshot may read is copied before it changes,
// which costs two small arrays a write, and reading costs a hash and two steps.
type trie[V any] struct {
	epoch  uint64
	size   int
	middle [fan]*branch[V]
}

const (
	fanBits = 6
	fan     = 1 << fanBits
)

type branch[V any] struct {
	epoch  uint64
	leaves [fan][]leaf[V]
}

// leaf is one entry; the slices of leaves are replaced, never changed.
type leaf[V any] struct {
	values []string
	value  V
}

var trieSeed = maphash.MakeSeed()

func hashOf(values []string) uint64 {
	var h uint64
	for _, v := range values {
		h = h*31 + maphash.String(trieSeed, v)
	}
	return h
}

func slotOf(h uint64) (middle, last uint64) {
	h ^= h >> 32
	return h & (fan - 1), h >> fanBits & (fan - 1)
}

// at finds the entry of a node, nil for none. It allocates nothing for keys that
// fit into the array.
func (t *trie[V]) at(keys []string, node *binding.Node) *V {
	var array [4]string
	values := array[:0]
	for _, k := range keys {
		v, ok := valueOf(k, node)
		if !ok {
			return nil
		}
		values = append(values, v)
	}
	return t.get(values)
}

func (t *trie[V]) get(values []string) *V {
	m, l := slotOf(hashOf(values))
	b := t.middle[m]
	if b == nil {
		return nil
	}
	for i := range b.leaves[l] {
		if equal(b.leaves[l][i].values, values) {
			return &b.leaves[l][i].value
		}
	}
	return nil
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// own returns a trie that may be changed in this epoch.
func (t *trie[V]) own(epoch uint64) *trie[V] {
	if t == nil {
		return &trie[V]{epoch: epoch}
	}
	if t.epoch == epoch {
		return t
	}
	c := *t
	c.epoch = epoch
	return &c
}

// set needs an own trie. It adds or replaces an entry.
func (t *trie[V]) set(values []string, value V) {
	b, l := t.branch(values)
	old := b.leaves[l]
	next := make([]leaf[V], 0, len(old)+1)
	for _, e := range old {
		if !equal(e.values, values) {
			next = append(next, e)
		}
	}
	if len(next) == len(old) {
		t.size++
	}
	b.leaves[l] = append(next, leaf[V]{values, value})
}

// delete needs an own trie.
func (t *trie[V]) delete(values []string) {
	b, l := t.branch(values)
	old := b.leaves[l]
	next := make([]leaf[V], 0, len(old))
	for _, e := range old {
		if !equal(e.values, values) {
			next = append(next, e)
		}
	}
	t.size -= len(old) - len(next)
	b.leaves[l] = next
}

// branch makes the branch of the values writable.
func (t *trie[V]) branch(values []string) (*branch[V], uint64) {
	m, l := slotOf(hashOf(values))
	b := t.middle[m]
	switch {
	case b == nil:
		b = &branch[V]{epoch: t.epoch}
	case b.epoch != t.epoch:
		c := *b
		c.epoch = t.epoch
		b = &c
	}
	t.middle[m] = b
	return b, l
}
