package volume

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Topology is a set of segments: topology key → value, as in CSI's Topology
// message and in node labels. All keys must agree for a place to match.
type Topology map[string]string

// MatchedBy reports whether a node with these labels lies in the topology. The
// empty topology is everywhere.
func (t Topology) MatchedBy(labels map[string]string) bool {
	for k, v := range t {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Pick returns the segments of labels under the given keys, and the keys that
// labels lack, sorted.
func Pick(labels map[string]string, keys []string) (t Topology, missing []string) {
	t = make(Topology, len(keys))
	for _, k := range keys {
		if v, ok := labels[k]; ok {
			t[k] = v
		} else {
			missing = append(missing, k)
		}
	}
	slices.Sort(missing)
	return t, slices.Compact(missing)
}

// String is the canonical form: k=v in the order of the keys, comma separated.
func (t Topology) String() string {
	parts := make([]string, 0, len(t))
	for _, k := range slices.Sorted(maps.Keys(t)) {
		parts = append(parts, k+"="+t[k])
	}
	return strings.Join(parts, ",")
}

// Allowed reports whether a node with these labels lies in a class's
// allowedTopologies: terms are alternatives, the expressions of a term must all
// hold, an expression holds for any of its values. No term allows every node; a
// term without expressions allows none (apis/core/v1/helper,
// MatchTopologySelectorTerms).
func Allowed(terms []corev1.TopologySelectorTerm, labels map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		for _, e := range t.MatchLabelExpressions {
			value, ok := labels[e.Key]
			if !ok || !slices.Contains(e.Values, value) {
				return false
			}
		}
		return len(t.MatchLabelExpressions) > 0
	})
}
