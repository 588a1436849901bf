package cache

import (
	"hash/maphash"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/berth-storage/berth/scheduler/binding"
)

// atlas numbers the spots that nodes and places are at, so that a pass over
// the nodes compares numbers and not labels. A ground is a set of label keys
// that some place asks for; the values under them have a number there, which
// stays theirs while a node or a place is at them.
//
// Which numbers a node has is remembered by the labels that the informer's
// object carries: objects never change, so the same labels have the same
// numbers, and the scheduler's own snapshot has the same objects. Labels that
// are not remembered (of a node that is newer than the atlas, or that a
// simulation made up) are looked up by their values.
//
// It copies on write, as index does: snapshot is O(1).
type atlas struct {
	epoch uint64
	// grounds by their number. Replaced where a snapshot reads it.
	grounds []ground
	shared  bool
	rows    *trie[labelsKey, row]
	// nodes: name → labels. Not part of a snapshot.
	nodes map[string]map[string]string
}

// rowWidth is how many grounds a row has room for; further ones are looked up
// by values. Few clusters use more than hostname, a driver's key and a zone.
const rowWidth = 6

// row is a node's numbers by ground, 0 where it has not all of the keys.
type row struct {
	name    string
	numbers [rowWidth]uint32
}

// ground is a set of label keys. Without users its position is free.
type ground struct {
	keys []string
	// users are the spots of places.
	users   int
	numbers *trie[string, uint32]

	// Not read by snapshots: by number, the values and who is at them; and the
	// numbers that are free.
	values []string
	refs   []int
	free   []uint32
}

var seed = maphash.MakeSeed()

func hashOf(values string) uint64 { return maphash.String(seed, values) }

// joined makes one string of the values that a spot has. No label value or name
// has the separator.
func joined(values []string) string { return strings.Join(values, "\x00") }

// labelsKey is the identity of a map of labels. It keeps the map, so that no
// other can come to have the same address.
type labelsKey struct{ of unsafe.Pointer }

func keyOfLabels(labels map[string]string) labelsKey {
	return labelsKey{reflect.ValueOf(labels).UnsafePointer()}
}

// hash is Fibonacci hashing: addresses differ in their lower middle bits.
func (k labelsKey) hash() uint64 { return uint64(uintptr(k.of)) * 0x9E3779B97F4A7C15 }

func newAtlas() *atlas { return &atlas{nodes: map[string]map[string]string{}} }

// snapshot is a view that later writes do not change. It must not be written.
func (a *atlas) snapshot() *atlas {
	a.epoch++
	a.shared = true
	return &atlas{grounds: a.grounds, rows: a.rows}
}

// row is nil for a node that is not remembered.
func (a *atlas) row(node *binding.Node) *row {
	// The name tells two nodes that were made with one map.
	key := keyOfLabels(node.Labels)
	if r := a.rows.get(key.hash(), key); r != nil && r.name == node.Name {
		return r
	}
	return nil
}

// number is where the node is on a ground, 0 for nowhere. r is the node's row.
func (a *atlas) number(g int, r *row, node *binding.Node) uint32 {
	if r != nil && g < rowWidth {
		return r.numbers[g]
	}
	values, ok := valuesAt(a.grounds[g].keys, node)
	if !ok {
		return 0
	}
	if n := a.grounds[g].numbers.get(hashOf(values), values); n != nil {
		return *n
	}
	return 0
}

// valuesAt joins the node's values under the keys; false where it lacks one. Of
// a single key it allocates nothing.
func valuesAt(keys []string, node *binding.Node) (string, bool) {
	if len(keys) == 1 {
		return valueOf(keys[0], node)
	}
	values := make([]string, 0, len(keys))
	for _, k := range keys {
		v, ok := valueOf(k, node)
		if !ok {
			return "", false
		}
		values = append(values, v)
	}
	return joined(values), true
}

// setNode remembers a node's labels in the place of its former ones.
func (a *atlas) setNode(name string, labels map[string]string) {
	old, known := a.nodes[name]
	if known && keyOfLabels(old) == keyOfLabels(labels) {
		return
	}
	node := binding.Node{Name: name, Labels: labels}
	r := row{name: name}
	a.own()
	for g := range min(len(a.grounds), rowWidth) {
		r.numbers[g] = a.enter(g, &node)
	}
	a.deleteNode(name)
	a.nodes[name] = labels
	a.setRow(&node, r)
}

// setRow needs own grounds. Labels that nobody has are not an identity.
func (a *atlas) setRow(node *binding.Node, r row) {
	if node.Labels == nil {
		return
	}
	key := keyOfLabels(node.Labels)
	a.rows = a.rows.own(a.epoch)
	a.rows.set(key.hash(), key, r)
}

func (a *atlas) deleteNode(name string) {
	labels, known := a.nodes[name]
	if !known {
		return
	}
	a.own()
	node := binding.Node{Name: name, Labels: labels}
	for g := range min(len(a.grounds), rowWidth) {
		a.leave(g, &node)
	}
	delete(a.nodes, name)
	if a.row(&node) != nil {
		key := keyOfLabels(labels)
		a.rows = a.rows.own(a.epoch)
		a.rows.delete(key.hash(), key)
	}
}

// settle gives the spots of a new place their numbers.
func (a *atlas) settle(p *place) {
	a.own()
	for i := range p.spots {
		s := &p.spots[i]
		s.ground = a.open(s.keys)
		a.grounds[s.ground].users++
		s.number = a.grounds[s.ground].hold(a.epoch, joined(s.values))
	}
}

// unsettle takes back what settle gave.
func (a *atlas) unsettle(p *place) {
	a.own()
	for i := range p.spots {
		g := &a.grounds[p.spots[i].ground]
		g.drop(a.epoch, p.spots[i].number)
		if g.users--; g.users == 0 {
			// The rows still have numbers of it, which no shape asks for until
			// open gives the position away and writes them anew.
			*g = ground{}
		}
	}
}

// open finds the ground of the keys, or makes it.
func (a *atlas) open(keys []string) int {
	at := slices.IndexFunc(a.grounds, func(g ground) bool { return g.users > 0 && slices.Equal(g.keys, keys) })
	if at >= 0 {
		return at
	}
	if at = slices.IndexFunc(a.grounds, func(g ground) bool { return g.users == 0 }); at < 0 {
		at = len(a.grounds)
		a.grounds = append(a.grounds, ground{})
	}
	// 0 is no number.
	a.grounds[at] = ground{keys: keys, values: make([]string, 1), refs: make([]int, 1)}
	if at >= rowWidth {
		return at
	}
	for name, labels := range a.nodes {
		node := binding.Node{Name: name, Labels: labels}
		n := a.enter(at, &node)
		if old := a.row(&node); old != nil {
			r := *old
			r.numbers[at] = n
			a.setRow(&node, r)
		}
	}
	return at
}

// enter counts a node on a ground.
func (a *atlas) enter(g int, node *binding.Node) uint32 {
	values, ok := valuesAt(a.grounds[g].keys, node)
	if !ok || a.grounds[g].refs == nil {
		return 0
	}
	return a.grounds[g].hold(a.epoch, values)
}

func (a *atlas) leave(g int, node *binding.Node) {
	if values, ok := valuesAt(a.grounds[g].keys, node); ok {
		if n := a.grounds[g].numbers.get(hashOf(values), values); n != nil {
			a.grounds[g].drop(a.epoch, *n)
		}
	}
}

// own makes the grounds writable.
func (a *atlas) own() {
	if a.shared {
		a.grounds, a.shared = slices.Clone(a.grounds), false
	}
}

// hold is the number of the values, given now if they have none.
func (g *ground) hold(epoch uint64, values string) uint32 {
	if n := g.numbers.get(hashOf(values), values); n != nil {
		g.refs[*n]++
		return *n
	}
	var n uint32
	if last := len(g.free) - 1; last >= 0 {
		n, g.free = g.free[last], g.free[:last]
		g.values[n], g.refs[n] = values, 1
	} else {
		n = uint32(len(g.values)) //nolint:gosec // one a node and a place
		g.values, g.refs = append(g.values, values), append(g.refs, 1)
	}
	g.numbers = g.numbers.own(epoch)
	g.numbers.set(hashOf(values), values, n)
	return n
}

// drop gives a number back.
func (g *ground) drop(epoch uint64, n uint32) {
	if g.refs[n]--; g.refs[n] > 0 {
		return
	}
	g.numbers = g.numbers.own(epoch)
	g.numbers.delete(hashOf(g.values[n]), g.values[n])
	g.values[n] = ""
	g.free = append(g.free, n)
}
