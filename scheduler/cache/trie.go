package cache

// trie is a map that copies on write: a part that a snapshot may read is copied
// before it changes, which costs two small arrays a write, and reading costs a
// hash and two steps. The hash of a key is its owner's affair.
type trie[K comparable, V any] struct {
	epoch  uint64
	size   int
	middle [fan]*branch[K, V]
}

const (
	fanBits = 6
	fan     = 1 << fanBits
)

type branch[K comparable, V any] struct {
	epoch  uint64
	leaves [fan][]leaf[K, V]
}

// leaf is one entry; the slices of leaves are replaced, never changed.
type leaf[K comparable, V any] struct {
	key   K
	value V
}

func slotOf(h uint64) (middle, last uint64) {
	h ^= h >> 32
	return h & (fan - 1), h >> fanBits & (fan - 1)
}

// get is nil for a key that is not there, and on a nil trie.
func (t *trie[K, V]) get(hash uint64, key K) *V {
	if t == nil {
		return nil
	}
	m, l := slotOf(hash)
	b := t.middle[m]
	if b == nil {
		return nil
	}
	for i := range b.leaves[l] {
		if b.leaves[l][i].key == key {
			return &b.leaves[l][i].value
		}
	}
	return nil
}

// each visits every entry of a trie, in no order.
func (t *trie[K, V]) each(visit func(*V)) {
	if t == nil {
		return
	}
	for _, b := range t.middle {
		if b == nil {
			continue
		}
		for _, leaves := range b.leaves {
			for i := range leaves {
				visit(&leaves[i].value)
			}
		}
	}
}

// own returns a trie that may be changed in this epoch.
func (t *trie[K, V]) own(epoch uint64) *trie[K, V] {
	if t == nil {
		return &trie[K, V]{epoch: epoch}
	}
	if t.epoch == epoch {
		return t
	}
	c := *t
	c.epoch = epoch
	return &c
}

// set needs an own trie. It adds or replaces an entry.
func (t *trie[K, V]) set(hash uint64, key K, value V) {
	b, l := t.branch(hash)
	next := dropped(b.leaves[l], key)
	if len(next) == len(b.leaves[l]) {
		t.size++
	}
	b.leaves[l] = append(next, leaf[K, V]{key, value})
}

// delete needs an own trie.
func (t *trie[K, V]) delete(hash uint64, key K) {
	b, l := t.branch(hash)
	next := dropped(b.leaves[l], key)
	t.size -= len(b.leaves[l]) - len(next)
	b.leaves[l] = next
}

// dropped are the leaves without that key, with room for one.
func dropped[K comparable, V any](old []leaf[K, V], key K) []leaf[K, V] {
	next := make([]leaf[K, V], 0, len(old)+1)
	for _, e := range old {
		if e.key != key {
			next = append(next, e)
		}
	}
	return next
}

// branch makes the branch of the hash writable.
func (t *trie[K, V]) branch(hash uint64) (*branch[K, V], uint64) {
	m, l := slotOf(hash)
	b := t.middle[m]
	switch {
	case b == nil:
		b = &branch[K, V]{epoch: t.epoch}
	case b.epoch != t.epoch:
		c := *b
		c.epoch = t.epoch
		b = &c
	}
	t.middle[m] = b
	return b, l
}
