package cache

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-storage/berth/scheduler/binding"
)

// nameKey stands for a node's name among label keys. No label key begins so.
const nameKey = "\x00metadata.name"

// spotsMax bounds the spots of one place: a zone of a hundred hosts is a list of
// spots, the product of two such lists is a predicate.
const spotsMax = 256

// place is where something can be reached from, compiled once: equal places are
// one place (see places). Where the nodes of a place are those that have certain
// labels, an index can find it from the node's own labels, at its spots.
type place struct {
	// id tells it from others; text is for people.
	id, text string
	// spots are alternatives; a node that is in none of them is not in the place.
	spots []spot
	// test is the whole condition, nil where the spots are exactly it.
	test []term
	// loose: the condition names no label values, so that only test tells. A
	// loose place without test is nowhere.
	loose bool

	// refs counts the holders, for places.
	refs int
}

// spot is a conjunction of label = value. Without keys it is everywhere.
type spot struct {
	keys, values []string
	// ground and number are the atlas's, for a place that places holds.
	ground int
	number uint32
}

// term is a conjunction of requirements on labels and on the node's name.
type term struct {
	labels []labels.Requirement
	// names are requirements on a set of one key, nameKey.
	names []nameRequirement
}

type nameRequirement struct {
	name string
	not  bool
}

// Matches implements binding.Place.
func (p *place) Matches(node *binding.Node) bool {
	if p.loose || p.test != nil {
		return slices.ContainsFunc(p.test, func(t term) bool { return t.matches(node) })
	}
	row := rowOf(node)
	for i := range p.spots {
		if p.spots[i].isAt(row, node) {
			return true
		}
	}
	return false
}

// isAt compares numbers where both have them. A place that was decided on and the
// row of the node are of one snapshot, whose numbers stand for the same values
// also when others have come to have them since.
func (s *spot) isAt(r *row, node *binding.Node) bool {
	if r != nil && s.number > 0 && s.ground < rowWidth {
		return r.numbers[s.ground] == s.number
	}
	return s.matches(node)
}

// String implements binding.Place.
func (p *place) String() string { return p.text }

func (s *spot) matches(node *binding.Node) bool {
	for i, key := range s.keys {
		if v, ok := valueOf(key, node); !ok || v != s.values[i] {
			return false
		}
	}
	return true
}

func valueOf(key string, node *binding.Node) (string, bool) {
	if key == nameKey {
		return node.Name, true
	}
	v, ok := node.Labels[key]
	return v, ok
}

func (t *term) matches(node *binding.Node) bool {
	for i := range t.labels {
		if !t.labels[i].Matches(labels.Set(node.Labels)) {
			return false
		}
	}
	for _, n := range t.names {
		if (n.name == node.Name) == n.not {
			return false
		}
	}
	return true
}

// places holds every place once (hash-consing). It has no lock; Cache gives it
// one.
type places struct {
	byID  map[string]*place
	atlas *atlas
}

func newPlaces(a *atlas) places { return places{byID: map[string]*place{}, atlas: a} }

// intern returns the place of that id, compiled where it is new. Each call is
// one reference, which release gives back.
func (all places) intern(id string, compile func() *place) *place {
	p := all.byID[id]
	if p == nil {
		p = compile()
		p.id = id
		all.byID[id] = p
		all.atlas.settle(p)
	}
	p.refs++
	return p
}

func (all places) release(p *place) {
	if p.refs--; p.refs == 0 {
		delete(all.byID, p.id)
		all.atlas.unsettle(p)
	}
}

// everywhere is the place of a volume without node affinity.
func everywhere() *place { return &place{spots: []spot{{}}} }

// nowhere is the place of what no node reaches.
func nowhere(text string) *place { return &place{loose: true, text: text} }

// ofVolume is the place of a node affinity.
func (all places) ofVolume(affinity *corev1.VolumeNodeAffinity) *place {
	if affinity == nil || affinity.Required == nil {
		return all.intern("everywhere", everywhere)
	}
	return all.intern(selectorID(affinity.Required), func() *place { return compileSelector(affinity.Required) })
}

// ofTopology is the place of a CSIStorageCapacity: nil is nowhere, an empty
// selector everywhere (storage/v1, CSIStorageCapacity.nodeTopology).
func (all places) ofTopology(s *metav1.LabelSelector) *place {
	if s == nil {
		return all.intern("nowhere", func() *place { return nowhere("no topology") })
	}
	requirements := topologyRequirements(s)
	if len(requirements) == 0 {
		return all.intern("everywhere", everywhere)
	}
	selector := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements}}}
	return all.intern(selectorID(selector), func() *place { return compileSelector(selector) })
}

// topologyRequirements writes a label selector as the requirements of a node
// selector, which has all its operators.
func topologyRequirements(s *metav1.LabelSelector) []corev1.NodeSelectorRequirement {
	out := make([]corev1.NodeSelectorRequirement, 0, len(s.MatchLabels)+len(s.MatchExpressions))
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		out = append(out, corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{s.MatchLabels[k]}})
	}
	for _, e := range s.MatchExpressions {
		out = append(out, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOperator(e.Operator), Values: e.Values})
	}
	return out
}

// selectorID writes a selector so that equal ones have equal ids.
func selectorID(s *corev1.NodeSelector) string {
	var b strings.Builder
	write := func(kind string, list []corev1.NodeSelectorRequirement) {
		for _, e := range list {
			b.WriteString(kind)
			b.WriteString(e.Key)
			b.WriteByte(1)
			b.WriteString(string(e.Operator))
			for _, v := range e.Values {
				b.WriteByte(2)
				b.WriteString(v)
			}
		}
	}
	for _, t := range s.NodeSelectorTerms {
		b.WriteByte(3)
		write("\x04", t.MatchExpressions)
		write("\x05", t.MatchFields)
	}
	return b.String()
}

// selectorText writes a selector for people.
func selectorText(s *corev1.NodeSelector) string {
	terms := make([]string, 0, len(s.NodeSelectorTerms))
	for _, t := range s.NodeSelectorTerms {
		exprs := make([]string, 0, len(t.MatchExpressions)+len(t.MatchFields))
		for _, e := range append(slices.Clone(t.MatchExpressions), t.MatchFields...) {
			if e.Operator == corev1.NodeSelectorOpIn {
				exprs = append(exprs, e.Key+"="+strings.Join(e.Values, "|"))
				continue
			}
			exprs = append(exprs, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, "|"))))
		}
		terms = append(terms, strings.Join(exprs, ","))
	}
	return strings.Join(terms, " or ")
}

// compileSelector reads a node selector: terms are ORed, requirements ANDed. A
// term that is empty or cannot be read matches nothing
// (component-helpers, scheduling/corev1/nodeaffinity).
func compileSelector(s *corev1.NodeSelector) *place {
	p := &place{text: selectorText(s)}
	exact := true
	for i := range s.NodeSelectorTerms {
		t, ok := compileTerm(&s.NodeSelectorTerms[i])
		if !ok {
			continue
		}
		p.test = append(p.test, t)
		spots, whole := spotsOf(&s.NodeSelectorTerms[i])
		p.spots = append(p.spots, spots...)
		exact = exact && whole
		p.loose = p.loose || len(spots) == 0
	}
	if p.loose = p.loose || len(p.test) == 0 || len(p.spots) > spotsMax; p.loose {
		p.spots = nil
	} else if exact {
		p.test = nil
	}
	return p
}

// operatorOf is empty for an operator that does not exist, which makes a
// requirement that cannot be read.
func operatorOf(o corev1.NodeSelectorOperator) selection.Operator {
	switch o {
	case corev1.NodeSelectorOpIn:
		return selection.In
	case corev1.NodeSelectorOpNotIn:
		return selection.NotIn
	case corev1.NodeSelectorOpExists:
		return selection.Exists
	case corev1.NodeSelectorOpDoesNotExist:
		return selection.DoesNotExist
	case corev1.NodeSelectorOpGt:
		return selection.GreaterThan
	case corev1.NodeSelectorOpLt:
		return selection.LessThan
	default:
		return ""
	}
}

// compileTerm is false for a term that matches nothing.
func compileTerm(t *corev1.NodeSelectorTerm) (term, bool) {
	var out term
	for _, e := range t.MatchExpressions {
		r, err := labels.NewRequirement(e.Key, operatorOf(e.Operator), e.Values)
		if err != nil {
			return term{}, false
		}
		out.labels = append(out.labels, *r)
	}
	for _, f := range t.MatchFields {
		known := f.Operator == corev1.NodeSelectorOpIn || f.Operator == corev1.NodeSelectorOpNotIn
		if f.Key != metav1.ObjectNameField || !known || len(f.Values) != 1 {
			return term{}, false
		}
		out.names = append(out.names, nameRequirement{f.Values[0], f.Operator == corev1.NodeSelectorOpNotIn})
	}
	return out, len(out.labels)+len(out.names) > 0
}

// spotsOf lists the label values that a term asks for, as alternatives; none
// where it asks for none. whole: they say all that the term says.
func spotsOf(t *corev1.NodeSelectorTerm) (spots []spot, whole bool) {
	want := map[string][]string{}
	whole = true
	list := slices.Clone(t.MatchExpressions)
	for _, f := range t.MatchFields {
		f.Key = nameKey
		list = append(list, f)
	}
	for _, e := range list {
		if _, twice := want[e.Key]; twice || e.Operator != corev1.NodeSelectorOpIn {
			whole = false
			continue
		}
		want[e.Key] = slices.Compact(slices.Sorted(slices.Values(e.Values)))
	}
	if len(want) == 0 {
		return nil, false
	}
	keys := slices.Sorted(maps.Keys(want))
	count := 1
	for _, k := range keys {
		if count *= len(want[k]); count > spotsMax {
			// Further factors could overflow.
			break
		}
	}
	if count > spotsMax {
		// One key finds it, test tells the rest.
		keys = []string{slices.MinFunc(keys, func(a, b string) int { return len(want[a]) - len(want[b]) })}
		whole = false
	}
	spots = []spot{{keys: keys}}
	for _, k := range keys {
		var next []spot
		for _, s := range spots {
			for _, v := range want[k] {
				next = append(next, spot{keys: keys, values: append(slices.Clip(slices.Clone(s.values)), v)})
			}
		}
		spots = next
	}
	return spots, whole
}
