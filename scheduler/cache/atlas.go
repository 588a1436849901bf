package cache

import (
	"hash/maphash"
	"slices"
	"strings"
	"unsafe"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/binding"
)

// atlas numbers the spots that nodes and places are at, so that a pass over
// the nodes compares numbers and not labels. A ground is a set of label keys
// that some place asks for; the values under them have a number there, which
// stays theirs while a node or a place is at them.
//
// Which numbers a node has is remembered by the informer's object: objects never
// change, so the same object has the same numbers, and the scheduler's own
// snapshot has the same objects. An object that is not remembered (newer than the
// atlas, or made up by a simulation) has its labels looked up by their values.
//
// It copies on write, as index does: snapshot is O(1).
type atlas struct {
	epoch uint64
	// grounds by their number. Replaced where a snapshot reads it.
	grounds []ground
	shared  bool
	rows    *trie[*corev1.Node, row]
	// nodes by name. Not part of a snapshot.
	nodes map[string]*corev1.Node
}

// rowWidth is how many grounds a row has room for; further ones are looked up
// by values. Few clusters use more than hostname, a driver's key and a zone.
const rowWidth = 6

// row is a node's numbers by ground, 0 where it has not all of the keys, and
// what a decision reads of it, so that the node itself is not read.
type row struct {
	numbers [rowWidth]uint32
	name    string
	labels  map[string]string
	tainted bool
}

// node is what a decision knows of the row's node.
func (r *row) node() binding.Node {
	return binding.Node{Name: r.name, Labels: r.labels, Tainted: r.tainted, Seen: r}
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

// addressHash is Fibonacci hashing: addresses differ in their middle bits. A key
// keeps its node, so that no other can come to have the same address.
func addressHash(n *corev1.Node) uint64 {
	return uint64(uintptr(unsafe.Pointer(n))) * 0x9E3779B97F4A7C15
}

func newAtlas() *atlas { return &atlas{nodes: map[string]*corev1.Node{}} }

// snapshot is a view that later writes do not change. It must not be written.
func (a *atlas) snapshot() *atlas {
	a.epoch++
	a.shared = true
	return &atlas{grounds: a.grounds, rows: a.rows}
}

// node is the node with its row in Seen, if it is remembered.
func (a *atlas) node(object *corev1.Node) binding.Node {
	if r := a.rows.get(addressHash(object), object); r != nil {
		return r.node()
	}
	return plain(object)
}

// plain is a node of which nothing is remembered.
func plain(object *corev1.Node) binding.Node {
	return binding.Node{Name: object.Name, Labels: object.Labels, Tainted: len(object.Spec.Taints) > 0}
}

// rowOf is what node found, nil for a node that is not remembered.
func rowOf(node *binding.Node) *row {
	r, _ := node.Seen.(*row)
	return r
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

// setNode remembers a node in the place of its former object.
func (a *atlas) setNode(object *corev1.Node) {
	if a.nodes[object.Name] == object {
		return
	}
	node := plain(object)
	r := row{name: node.Name, labels: node.Labels, tainted: node.Tainted}
	a.own()
	for g := range min(len(a.grounds), rowWidth) {
		r.numbers[g] = a.enter(g, &node)
	}
	a.deleteNode(object.Name)
	a.nodes[object.Name] = object
	a.rows = a.rows.own(a.epoch)
	a.rows.set(addressHash(object), object, r)
}

func (a *atlas) deleteNode(name string) {
	object := a.nodes[name]
	if object == nil {
		return
	}
	a.own()
	node := binding.Node{Name: name, Labels: object.Labels}
	for g := range min(len(a.grounds), rowWidth) {
		a.leave(g, &node)
	}
	delete(a.nodes, name)
	a.rows = a.rows.own(a.epoch)
	a.rows.delete(addressHash(object), object)
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
	a.rows = a.rows.own(a.epoch)
	for name, object := range a.nodes {
		hash := addressHash(object)
		r := *a.rows.get(hash, object)
		r.numbers[at] = a.enter(at, &binding.Node{Name: name, Labels: object.Labels})
		a.rows.set(hash, object, r)
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
