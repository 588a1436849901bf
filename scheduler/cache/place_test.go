package cache

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/test/seeds"
)

// randomSelector makes selectors of every operator, plain ones often.
func randomSelector(r *rand.Rand) *corev1.NodeSelector {
	keys := []string{"host", "zone", "rank"}
	s := &corev1.NodeSelector{}
	for range 1 + r.IntN(2) {
		var term corev1.NodeSelectorTerm
		for range r.IntN(3) {
			e := corev1.NodeSelectorRequirement{Key: keys[r.IntN(3)], Operator: corev1.NodeSelectorOpIn, Values: []string{strconv.Itoa(r.IntN(3))}}
			switch r.IntN(8) {
			case 0:
				e.Values = append(e.Values, strconv.Itoa(r.IntN(3)))
			case 1:
				e.Operator = corev1.NodeSelectorOpNotIn
			case 2:
				e.Operator, e.Values = corev1.NodeSelectorOpExists, nil
			case 3:
				e.Operator, e.Values = corev1.NodeSelectorOpDoesNotExist, nil
			case 4:
				e.Operator = corev1.NodeSelectorOpGt
			case 5:
				e.Operator = corev1.NodeSelectorOpLt
			}
			term.MatchExpressions = append(term.MatchExpressions, e)
		}
		if r.IntN(4) == 0 {
			op := []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn}[r.IntN(2)]
			term.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{fmt.Sprint("n", r.IntN(4))}}}
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, term)
	}
	return s
}

func randomNode(r *rand.Rand) binding.Node {
	n := binding.Node{Name: fmt.Sprint("n", r.IntN(4)), Labels: map[string]string{}}
	for _, k := range []string{"host", "zone", "rank"} {
		if r.IntN(4) > 0 {
			n.Labels[k] = strconv.Itoa(r.IntN(3))
		}
	}
	return n
}

// TestIndexAgainstScan: the index finds what evaluating every selector finds,
// also in a snapshot that its original has moved on from.
func TestIndexAgainstScan(t *testing.T) {
	found, exact, tested, loose := 0, 0, 0, 0
	rounds := seeds.Rounds(t, 1000, func(seed uint64, r *rand.Rand) {
		a := newAtlas()
		x, shared := newIndex[string, string](a), newPlaces(a)
		all, placed := map[string]*corev1.NodeSelector{}, map[string]*place{}
		for i := range 1 + r.IntN(12) {
			name := fmt.Sprint("pv", i)
			all[name] = nil
			var affinity *corev1.VolumeNodeAffinity
			if r.IntN(6) > 0 {
				affinity = &corev1.VolumeNodeAffinity{Required: randomSelector(r)}
				all[name] = affinity.Required
			}
			p := shared.ofVolume(affinity)
			switch {
			case p.loose:
				loose++
			case p.test != nil:
				tested++
			default:
				exact++
			}
			placed[name] = p
			x.set("class", p, 0, name, name)
			x.set("other", p, 0, name, "wrong group")
			if r.IntN(3) == 0 {
				x.snapshot(a.snapshot())
			}
		}
		snap := x.snapshot(a.snapshot())
		for name, p := range placed {
			x.delete("class", p, 0, name)
			shared.release(p)
		}
		node := randomNode(r)
		if got := collect(x, "class", &node); got != nil {
			t.Fatalf("seed %d: an emptied group yields %v", seed, got)
		}
		if _, left := x.groups["class"]; left || len(shared.byID) > 0 {
			t.Fatalf("seed %d: an emptied group is kept, or places without holders: %v", seed, shared.byID)
		}
		var want []string
		for name, s := range all {
			if s == nil || matches(t, s, node) {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, collect(snap, "class", &node)); diff != "" {
			t.Fatalf("seed %d: node %v (-want +got)\n%s", seed, node, diff)
		}
		for name, p := range placed {
			if got, want := p.Matches(&node), slices.Contains(want, name); got != want {
				t.Fatalf("seed %d: place %q matches node %v: %t, want %t", seed, p, node, got, want)
			}
		}
		found += len(want)
	})
	if rounds >= 1000 && (found < 500 || exact < 500 || tested < 200 || loose < 500) {
		t.Errorf("poor cases: %d found, %d exact places, %d tested, %d loose", found, exact, tested, loose)
	}
}

func matches(t *testing.T, s *corev1.NodeSelector, node binding.Node) bool {
	t.Helper()
	selector, err := nodeaffinity.NewNodeSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}})
}

func collect(x *index[string, string], key string, node *binding.Node) []string {
	var out []string
	x.of(key).reach(node, math.MinInt64, func(v *string) bool {
		out = append(out, *v)
		return true
	})
	slices.Sort(out)
	// A volume of two alternatives that both hold is met twice.
	return slices.Compact(out)
}

// TestListAgainstSort: a list of any history is the sorted set of what was put
// in and not taken out, and earlier lists stay what they were.
func TestListAgainstSort(t *testing.T) {
	longest := 0
	rounds := seeds.Rounds(t, 30, func(seed uint64, r *rand.Rand) {
		var l list[int]
		world := map[string]entry[int]{}
		order := func() (out []int) {
			all := slices.SortedFunc(maps.Values(world), func(a, b entry[int]) int { return a.compare(b.size, b.id) })
			for _, e := range all {
				out = append(out, e.value)
			}
			return out
		}
		read := func(l list[int], from int64) (out []int) {
			l.ascend(from, func(e *entry[int]) bool { out = append(out, e.value); return true })
			return out
		}
		steps := []int{10, 200, 1500}[r.IntN(3)]
		for i := range steps {
			e := entry[int]{size: int64(r.IntN(20)), value: i}
			e.id = fmt.Sprint(e.size, "-", r.IntN(steps/4+1))
			check := i%37 == 0
			before, wantBefore := l, []int(nil)
			if check {
				wantBefore = order()
			}
			if r.IntN(3) == 0 {
				l = l.without(e.size, e.id)
				delete(world, e.id)
			} else {
				l = l.with(e)
				world[e.id] = e
			}
			if check {
				if diff := cmp.Diff(wantBefore, read(before, math.MinInt64)); diff != "" {
					t.Fatalf("seed %d, step %d: an earlier list changed (-want +got)\n%s", seed, i, diff)
				}
			}
		}
		want := order()
		if diff := cmp.Diff(want, read(l, math.MinInt64)); diff != "" {
			t.Fatalf("seed %d: (-want +got)\n%s", seed, diff)
		}
		from := int64(r.IntN(20))
		for id, e := range world {
			if e.size < from {
				delete(world, id)
			}
		}
		if diff := cmp.Diff(order(), read(l, from)); diff != "" {
			t.Fatalf("seed %d, from %d: (-want +got)\n%s", seed, from, diff)
		}
		longest = max(longest, len(l.chunks))
	})
	if rounds >= 30 && longest < 3 {
		t.Errorf("poor cases: no list of more than %d chunks", longest)
	}
}

func TestTopologyPlace(t *testing.T) {
	node := binding.Node{Name: "n1", Labels: map[string]string{"zone": "z1", "host": "n1"}}
	in := func(values ...string) []metav1.LabelSelectorRequirement {
		return []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: values}}
	}
	cases := map[string]struct {
		reason string
		in     *metav1.LabelSelector
		want   bool
	}{
		"nil":          {"no topology is reachable from nowhere", nil, false},
		"empty":        {"an empty selector is everywhere", &metav1.LabelSelector{}, true},
		"label":        {"labels", &metav1.LabelSelector{MatchLabels: map[string]string{"host": "n1"}}, true},
		"other label":  {"labels", &metav1.LabelSelector{MatchLabels: map[string]string{"host": "n2"}}, false},
		"both":         {"labels and expressions are ANDed", &metav1.LabelSelector{MatchLabels: map[string]string{"host": "n1"}, MatchExpressions: in("z1")}, true},
		"several":      {"In of several values", &metav1.LabelSelector{MatchExpressions: in("z0", "z1")}, true},
		"several, not": {"In of several values", &metav1.LabelSelector{MatchExpressions: in("z0", "z2")}, false},
		"contradiction": {
			"a label and an expression of one key are both asked",
			&metav1.LabelSelector{MatchLabels: map[string]string{"zone": "z1"}, MatchExpressions: in("z2")}, false,
		},
		"unreadable": {
			"an unknown operator is reachable from nowhere",
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}}, false,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := newPlaces(newAtlas()).ofTopology(tc.in).Matches(&node); got != tc.want {
				t.Errorf("%s: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
