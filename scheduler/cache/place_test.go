package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-storage/berth/scheduler/binding"
)

// randomSelector makes selectors of every operator, plain ones often.
func randomSelector(r *rand.Rand) *v1.NodeSelector {
	keys := []string{"host", "zone", "rank"}
	s := &v1.NodeSelector{}
	for range 1 + r.IntN(2) {
		var term v1.NodeSelectorTerm
		for range r.IntN(3) {
			e := v1.NodeSelectorRequirement{Key: keys[r.IntN(3)], Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprint(r.IntN(3))}}
			switch r.IntN(8) {
			case 0:
				e.Values = append(e.Values, fmt.Sprint(r.IntN(3)))
			case 1:
				e.Operator = v1.NodeSelectorOpNotIn
			case 2:
				e.Operator, e.Values = v1.NodeSelectorOpExists, nil
			case 3:
				e.Operator, e.Values = v1.NodeSelectorOpDoesNotExist, nil
			case 4:
				e.Operator = v1.NodeSelectorOpGt
			case 5:
				e.Operator = v1.NodeSelectorOpLt
			}
			term.MatchExpressions = append(term.MatchExpressions, e)
		}
		if r.IntN(4) == 0 {
			op := []v1.NodeSelectorOperator{v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn}[r.IntN(2)]
			term.MatchFields = []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{fmt.Sprint("n", r.IntN(4))}}}
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, term)
	}
	return s
}

func randomNode(r *rand.Rand) binding.Node {
	n := binding.Node{Name: fmt.Sprint("n", r.IntN(4)), Labels: map[string]string{}}
	for _, k := range []string{"host", "zone", "rank"} {
		if r.IntN(4) > 0 {
			n.Labels[k] = fmt.Sprint(r.IntN(3))
		}
	}
	return n
}

// TestIndexAgainstScan: the index finds what evaluating every selector finds,
// also in a snapshot that its original has moved on from.
func TestIndexAgainstScan(t *testing.T) {
	found, plain, predicates := 0, 0, 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 3))
		x := newIndex[string]()
		all := map[string]*v1.NodeSelector{}
		places := map[string]*place{}
		for i := range 1 + r.IntN(12) {
			name := fmt.Sprint("pv", i)
			pv := &v1.PersistentVolume{}
			if r.IntN(6) > 0 {
				pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: randomSelector(r)}
				all[name] = pv.Spec.NodeAffinity.Required
			} else {
				all[name] = nil
			}
			p := volumePlace(pv)
			if p.matches == nil {
				plain++
			} else {
				predicates++
			}
			places[name] = p
			x.set("class", p, name, name)
			x.set("other", p, name, "wrong group")
		}
		snap := x.snapshot()
		for name := range places {
			x.delete("class", places[name], name)
		}
		node := randomNode(r)
		if got := collect(x, "class", node); got != nil {
			t.Fatalf("seed %d: an emptied group yields %v", seed, got)
		}
		var want []string
		for name, s := range all {
			if s == nil || matches(t, s, node) {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, collect(snap, "class", node)); diff != "" {
			t.Fatalf("seed %d: node %v (-want +got)\n%s", seed, node, diff)
		}
		found += len(want)
	}
	if found < 500 || plain < 500 || predicates < 500 {
		t.Errorf("poor cases: %d found, %d plain places, %d predicates", found, plain, predicates)
	}
}

func matches(t *testing.T, s *v1.NodeSelector, node binding.Node) bool {
	t.Helper()
	selector, err := nodeaffinity.NewNodeSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Match(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}})
}

func collect(x *index[string], group string, node binding.Node) []string {
	var out []string
	for _, sh := range x.shelves(group, node) {
		for v := range sh.from("") {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
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
		"contradiction": {"a label and an expression of one key are both asked",
			&metav1.LabelSelector{MatchLabels: map[string]string{"zone": "z1"}, MatchExpressions: in("z2")}, false},
		"unreadable": {"an unknown operator is reachable from nowhere",
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := topologyPlace(tc.in).Matches(node); got != tc.want {
				t.Errorf("%s: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
