package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/test/seeds"
)

// atlasKeys are more keys than a row has room for grounds.
const atlasKeys = rowWidth + 3

// chart is an atlas in use, and what is true: where its nodes and items are.
type chart struct {
	t      *testing.T
	r      *rand.Rand
	atlas  *atlas
	places places
	index  *index[string, string]
	nodes  map[string]*corev1.Node
	items  map[string]*place
	// looks count nodes found by their row and by their values.
	byRow, byValues int
}

// frozen is a snapshot and what was true then.
type frozen struct {
	index *index[string, string]
	nodes map[string]*corev1.Node
	items map[string]*place
}

func (c *chart) key() string { return fmt.Sprint("k", c.r.IntN(atlasKeys)) }

// node makes or moves a node, or gives it an equal object.
func (c *chart) node() {
	name := fmt.Sprint("n", c.r.IntN(5))
	old, known := c.nodes[name]
	labels := map[string]string{}
	switch {
	case known && c.r.IntN(3) == 0:
		labels = old.Labels
	default:
		for i := range atlasKeys {
			if c.r.IntN(4) > 0 {
				labels[fmt.Sprint("k", i)] = strconv.Itoa(c.r.IntN(3))
			}
		}
	}
	c.nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	c.atlas.setNode(c.nodes[name])
}

func (c *chart) item() {
	name := fmt.Sprint("i", c.r.IntN(30))
	if old := c.items[name]; old != nil {
		c.index.delete("class", old, 0, name)
		c.places.release(old)
		delete(c.items, name)
		return
	}
	var term corev1.NodeSelectorTerm
	for range 1 + c.r.IntN(2) {
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: c.key(), Operator: corev1.NodeSelectorOpIn, Values: []string{strconv.Itoa(c.r.IntN(3)), strconv.Itoa(c.r.IntN(3))},
		})
	}
	if c.r.IntN(8) == 0 {
		term = corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprint("n", c.r.IntN(5))},
		}}}
	}
	p := c.places.ofVolume(&corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}})
	c.items[name] = p
	c.index.set("class", p, 0, name, name)
}

func (c *chart) freeze() frozen {
	return frozen{c.index.snapshot(c.atlas.snapshot()), maps.Clone(c.nodes), maps.Clone(c.items)}
}

// check: every node finds what its labels say, also one that nobody knows.
func (c *chart) check(f frozen) {
	c.t.Helper()
	for _, node := range f.nodes {
		for _, object := range []*corev1.Node{node, node.DeepCopy()} {
			n := f.index.atlas.node(object)
			if rowOf(&n) != nil {
				c.byRow++
			} else {
				c.byValues++
			}
			var want []string
			plain := binding.Node{Name: object.Name, Labels: object.Labels}
			for name, p := range f.items {
				if p.Matches(&plain) {
					want = append(want, name)
				}
				if p.Matches(&n) != p.Matches(&plain) {
					c.t.Fatalf("place %q matches %v by its numbers otherwise than by its labels", p, n)
				}
			}
			slices.Sort(want)
			if diff := cmp.Diff(want, collect(f.index, "class", &n)); diff != "" {
				c.t.Fatalf("node %v (-want +got)\n%s", n, diff)
			}
		}
	}
}

// empty: nothing is kept of nodes and places that are gone.
func (c *chart) empty() {
	c.t.Helper()
	for name := range c.nodes {
		c.atlas.deleteNode(name)
	}
	for name, p := range c.items {
		c.index.delete("class", p, 0, name)
		c.places.release(p)
	}
	for i, g := range c.atlas.grounds {
		if g.users != 0 || g.numbers != nil || g.refs != nil {
			c.t.Errorf("ground %d is kept: %+v", i, g)
		}
	}
	if c.atlas.rows != nil && c.atlas.rows.size != 0 || len(c.atlas.nodes) != 0 {
		c.t.Errorf("nodes are kept: %v", c.atlas.nodes)
	}
}

// TestAtlas: whatever nodes and places come, move and go, each snapshot finds
// what was true at its time, and nothing is left behind.
func TestAtlas(t *testing.T) {
	byRow, byValues, wide := 0, 0, 0
	rounds := seeds.Rounds(t, 200, func(_ uint64, r *rand.Rand) {
		a := newAtlas()
		c := &chart{t: t, r: r, atlas: a, places: newPlaces(a), index: newIndex[string, string](a), nodes: map[string]*corev1.Node{}, items: map[string]*place{}}
		var past []frozen
		for range 60 {
			if r.IntN(3) == 0 {
				c.node()
			} else {
				c.item()
			}
			if r.IntN(12) == 0 {
				name := fmt.Sprint("n", r.IntN(5))
				c.atlas.deleteNode(name)
				delete(c.nodes, name)
			}
			if r.IntN(8) == 0 {
				past = append(past, c.freeze())
			}
		}
		wide = max(wide, len(a.grounds))
		past = append(past, c.freeze())
		for _, f := range past {
			c.check(f)
		}
		c.empty()
		for _, f := range past {
			c.check(f)
		}
		byRow, byValues = byRow+c.byRow, byValues+c.byValues
	})
	if rounds >= 200 && (byRow < 1000 || byValues < 1000 || wide <= rowWidth) {
		t.Errorf("poor cases: %d by row, %d by values, at most %d grounds", byRow, byValues, wide)
	}
}
