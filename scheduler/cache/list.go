package cache

import (
	"cmp"
	"slices"
	"strings"
)

// entry is a value in a list, ordered by size, then by id.
type entry[T any] struct {
	// What a pass over the nodes reads comes first.
	size int64
	// place is tested where the way to the list did not say all about it.
	place *place
	value T
	id    string
}

func (e *entry[T]) compare(size int64, id string) int {
	return cmp.Or(cmp.Compare(e.size, size), strings.Compare(e.id, id))
}

// chunkMax bounds what one write copies of a long list.
const chunkMax = 128

// list is an ordered list that never changes: with and without return another
// one that shares all but one chunk. The zero list is empty.
type list[T any] struct {
	// head is the first entry, again, and some says that there is one: most passes
	// need no more of a list, and each further place in memory is one to wait for.
	head entry[T]
	some bool
	// only is the chunk of a list that has a single one of more than the head.
	only []entry[T]
	// chunks are ordered and none is empty; nil where there is one chunk.
	chunks [][]entry[T]
}

// listOf makes a list of chunks that it owns.
func listOf[T any](chunks [][]entry[T]) list[T] {
	switch len(chunks) {
	case 0:
		return list[T]{}
	case 1:
		l := list[T]{head: chunks[0][0], some: true}
		if len(chunks[0]) > 1 {
			l.only = chunks[0]
		}
		return l
	}
	return list[T]{head: chunks[0][0], some: true, chunks: chunks}
}

// all are the list's chunks.
func (l list[T]) all() [][]entry[T] {
	switch {
	case !l.some || l.chunks != nil:
		return l.chunks
	case l.only != nil:
		return [][]entry[T]{l.only}
	}
	return [][]entry[T]{{l.head}}
}

// find is where an entry of that order is among the chunks, or would be.
func find[T any](chunks [][]entry[T], size int64, id string) (chunk, at int, found bool) {
	chunk, _ = slices.BinarySearchFunc(chunks, 0, func(c []entry[T], _ int) int {
		return c[len(c)-1].compare(size, id)
	})
	if chunk == len(chunks) {
		return chunk, 0, false
	}
	at, found = findIn(chunks[chunk], size, id)
	return chunk, at, found
}

func findIn[T any](c []entry[T], size int64, id string) (at int, found bool) {
	lo, hi := 0, len(c)
	for lo < hi {
		if mid := (lo + hi) / 2; c[mid].compare(size, id) < 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(c) && c[lo].compare(size, id) == 0
}

// with adds or replaces an entry.
func (l list[T]) with(e entry[T]) list[T] {
	all := l.all()
	chunk, at, found := find(all, e.size, e.id)
	if chunk == len(all) {
		if chunk == 0 {
			return list[T]{head: e, some: true}
		}
		chunk--
		at = len(all[chunk])
	}
	old := all[chunk]
	tail := old[at:]
	if found {
		tail = tail[1:]
	}
	next := make([]entry[T], 0, len(old)+1)
	next = append(append(append(next, old[:at]...), e), tail...)
	chunks := make([][]entry[T], 0, len(all)+1)
	chunks = append(chunks, all[:chunk]...)
	if half := len(next) / 2; len(next) > chunkMax {
		chunks = append(chunks, next[:half:half], next[half:])
	} else {
		chunks = append(chunks, next)
	}
	return listOf(append(chunks, all[chunk+1:]...))
}

// without drops an entry; a list that lacks it is returned as it is.
func (l list[T]) without(size int64, id string) list[T] {
	all := l.all()
	chunk, at, found := find(all, size, id)
	if !found {
		return l
	}
	chunks := make([][]entry[T], 0, len(all))
	chunks = append(chunks, all[:chunk]...)
	if old := all[chunk]; len(old) > 1 {
		chunks = append(chunks, slices.Concat(old[:at], old[at+1:]))
	}
	return listOf(append(chunks, all[chunk+1:]...))
}

// ascend visits the entries of at least that size, in order, until visit
// answers false.
func (l *list[T]) ascend(size int64, visit func(*entry[T]) bool) {
	if !l.some {
		return
	}
	chunk, at := 0, 0
	if l.head.size >= size {
		if !visit(&l.head) {
			return
		}
		at = 1
	}
	switch {
	case l.only != nil:
		if at == 0 {
			at, _ = findIn(l.only, size, "")
		}
		each(l.only[at:], visit)
		return
	case at == 0:
		chunk, at, _ = find(l.chunks, size, "")
	}
	for ; chunk < len(l.chunks); chunk, at = chunk+1, 0 {
		if !each(l.chunks[chunk][at:], visit) {
			return
		}
	}
}

func each[T any](c []entry[T], visit func(*entry[T]) bool) bool {
	for i := range c {
		if !visit(&c[i]) {
			return false
		}
	}
	return true
}

func (l *list[T]) empty() bool { return !l.some }
