package cache

import (
	"cmp"
	"slices"
	"strings"
)

// entry is a value in a list, ordered by size, then by id.
type entry[T any] struct {
	size  int64
	id    string
	value T
	// place is tested where the way to the list did not say all about it.
	place *place
}

func (e *entry[T]) compare(size int64, id string) int {
	return cmp.Or(cmp.Compare(e.size, size), strings.Compare(e.id, id))
}

// chunkMax bounds what one write copies of a long list.
const chunkMax = 128

// list is an ordered list that never changes: with and without return another
// one that shares all but one chunk. The zero list is empty.
type list[T any] struct {
	// chunks are ordered and none is empty.
	chunks [][]entry[T]
}

// find is where an entry of that order is, or would be.
func (l list[T]) find(size int64, id string) (chunk, at int, found bool) {
	chunk, _ = slices.BinarySearchFunc(l.chunks, 0, func(c []entry[T], _ int) int {
		return c[len(c)-1].compare(size, id)
	})
	if chunk == len(l.chunks) {
		return chunk, 0, false
	}
	c := l.chunks[chunk]
	lo, hi := 0, len(c)
	for lo < hi {
		if mid := (lo + hi) / 2; c[mid].compare(size, id) < 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return chunk, lo, lo < len(c) && c[lo].compare(size, id) == 0
}

// with adds or replaces an entry.
func (l list[T]) with(e entry[T]) list[T] {
	chunk, at, found := l.find(e.size, e.id)
	if chunk == len(l.chunks) {
		if chunk == 0 {
			return list[T]{[][]entry[T]{{e}}}
		}
		chunk--
		at = len(l.chunks[chunk])
	}
	old := l.chunks[chunk]
	tail := old[at:]
	if found {
		tail = tail[1:]
	}
	next := make([]entry[T], 0, len(old)+1)
	next = append(append(append(next, old[:at]...), e), tail...)
	chunks := make([][]entry[T], 0, len(l.chunks)+1)
	chunks = append(chunks, l.chunks[:chunk]...)
	if half := len(next) / 2; len(next) > chunkMax {
		chunks = append(chunks, next[:half:half], next[half:])
	} else {
		chunks = append(chunks, next)
	}
	return list[T]{append(chunks, l.chunks[chunk+1:]...)}
}

// without drops an entry; a list that lacks it is returned as it is.
func (l list[T]) without(size int64, id string) list[T] {
	chunk, at, found := l.find(size, id)
	if !found {
		return l
	}
	chunks := make([][]entry[T], 0, len(l.chunks))
	chunks = append(chunks, l.chunks[:chunk]...)
	if old := l.chunks[chunk]; len(old) > 1 {
		chunks = append(chunks, slices.Concat(old[:at], old[at+1:]))
	}
	return list[T]{append(chunks, l.chunks[chunk+1:]...)}
}

// ascend visits the entries of at least that size, in order, until visit
// answers false.
func (l list[T]) ascend(size int64, visit func(*entry[T]) bool) {
	chunk, at, _ := l.find(size, "")
	for ; chunk < len(l.chunks); chunk, at = chunk+1, 0 {
		for c := l.chunks[chunk]; at < len(c); at++ {
			if !visit(&c[at]) {
				return
			}
		}
	}
}

func (l list[T]) empty() bool { return len(l.chunks) == 0 }
