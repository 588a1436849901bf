package cache

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-storage/berth/scheduler/binding"
)

// nameKey stands for a node's name among label keys. No label key begins so.
const nameKey = "\x00metadata.name"

// place is where something can be reached from, in a form that an index can
// use. A plain place is a conjunction of label=value (almost all are: a
// hostname, a zone); any other is a predicate, evaluated once per node for all
// that share it.
type place struct {
	// keys are sorted; values belong to them, joined by sep.
	keys   []string
	values string
	// matches is nil for a plain place.
	matches func(binding.Node) bool
	// text is for people; for a predicate it also identifies it.
	text string
}

// sep joins values; no label value or node name contains it.
const sep = "\x01"

// shape identifies the keys of a plain place; predicates share one shape.
func (p *place) shape() string {
	if p.matches != nil {
		return predicateShape
	}
	return strings.Join(p.keys, sep)
}

// predicateShape sorts after every label key.
const predicateShape = "~"

// Matches implements binding.Place.
func (p *place) Matches(node binding.Node) bool {
	if p.matches != nil {
		return p.matches(node)
	}
	values, ok := valuesOf(p.keys, node)
	return ok && values == p.values
}

// String implements binding.Place.
func (p *place) String() string { return p.text }

// valuesOf joins what a node has under the keys; false where it lacks one.
func valuesOf(keys []string, node binding.Node) (string, bool) {
	if len(keys) == 1 {
		return valueOf(keys[0], node)
	}
	var b strings.Builder
	for i, k := range keys {
		v, ok := valueOf(k, node)
		if !ok {
			return "", false
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(v)
	}
	return b.String(), true
}

func valueOf(key string, node binding.Node) (string, bool) {
	if key == nameKey {
		return node.Name, true
	}
	v, ok := node.Labels[key]
	return v, ok
}

// plainPlace makes the place where all these labels hold; none is everywhere.
func plainPlace(want map[string]string) *place {
	p := &place{keys: slices.Sorted(maps.Keys(want))}
	values := make([]string, 0, len(want))
	texts := make([]string, 0, len(want))
	for _, k := range p.keys {
		values = append(values, want[k])
		texts = append(texts, strings.TrimPrefix(k, "\x00")+"="+want[k])
	}
	p.values, p.text = strings.Join(values, sep), strings.Join(texts, ",")
	return p
}

// everywhere is the place of a volume without node affinity.
func everywhere() *place { return plainPlace(nil) }

// nowhere is the place of what no node reaches.
func nowhere(text string) *place {
	return &place{matches: func(binding.Node) bool { return false }, text: text}
}

// volumePlace is the place of a PersistentVolume. A selector that cannot be
// read is nowhere, with the error in its text: the API server accepts none such.
func volumePlace(pv *v1.PersistentVolume) *place {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return everywhere()
	}
	required := pv.Spec.NodeAffinity.Required
	if want, ok := plainTerm(required); ok {
		return plainPlace(want)
	}
	selector, err := nodeaffinity.NewNodeSelector(required)
	if err != nil {
		return nowhere(fmt.Sprintf("node affinity that cannot be read: %v", err))
	}
	return &place{text: selectorText(required), matches: func(n binding.Node) bool {
		return selector.Match(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}})
	}}
}

// plainTerm reads a selector that is one term of key In (one value).
func plainTerm(s *v1.NodeSelector) (map[string]string, bool) {
	if len(s.NodeSelectorTerms) != 1 {
		return nil, false
	}
	term := s.NodeSelectorTerms[0]
	want := map[string]string{}
	for _, e := range term.MatchExpressions {
		if _, twice := want[e.Key]; twice || e.Operator != v1.NodeSelectorOpIn || len(e.Values) != 1 {
			return nil, false
		}
		want[e.Key] = e.Values[0]
	}
	for _, f := range term.MatchFields {
		if _, twice := want[nameKey]; twice || f.Key != "metadata.name" || f.Operator != v1.NodeSelectorOpIn || len(f.Values) != 1 {
			return nil, false
		}
		want[nameKey] = f.Values[0]
	}
	return want, len(want) > 0
}

// selectorText writes a selector for people, and so that equal selectors have
// equal texts.
func selectorText(s *v1.NodeSelector) string {
	terms := make([]string, 0, len(s.NodeSelectorTerms))
	for _, t := range s.NodeSelectorTerms {
		var exprs []string
		for _, e := range append(slices.Clone(t.MatchExpressions), t.MatchFields...) {
			exprs = append(exprs, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, "|"))))
		}
		terms = append(terms, strings.Join(exprs, ", "))
	}
	return strings.Join(terms, " or ")
}

// topologyPlace is the place of a CSIStorageCapacity: nil is nowhere, an empty
// selector everywhere (storage/v1, CSIStorageCapacity.nodeTopology).
func topologyPlace(s *metav1.LabelSelector) *place {
	if s == nil {
		return nowhere("no topology")
	}
	want := maps.Clone(s.MatchLabels)
	if want == nil {
		want = map[string]string{}
	}
	plain := true
	for _, e := range s.MatchExpressions {
		if _, twice := want[e.Key]; twice || e.Operator != metav1.LabelSelectorOpIn || len(e.Values) != 1 {
			plain = false
			break
		}
		want[e.Key] = e.Values[0]
	}
	if plain {
		return plainPlace(want)
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nowhere(fmt.Sprintf("node topology that cannot be read: %v", err))
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nowhere(fmt.Sprintf("node topology that cannot be written: %v", err))
	}
	return &place{text: string(text), matches: func(n binding.Node) bool {
		return selector.Matches(labels.Set(n.Labels))
	}}
}
