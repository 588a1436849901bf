package oracle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/volume"
)

// choice is what becomes of each delayed claim, by position: a volume, or nil to be
// provisioned.
type choice []*corev1.PersistentVolume

const final = "UnschedulableAndUnresolvable"

// judge is every verdict that may be given for a node.
func (m *model) judge(n *corev1.Node) []verdict {
	bound := m.checkBound(n)
	if len(bound) > 0 && bound[0].code == "Error" {
		return []verdict{{refusals: bound}}
	}
	out := m.place(n)
	if len(bound) > 0 {
		for i := range out {
			out[i] = verdict{refusals: append(slices.Clone(bound), out[i].refusals...)}
		}
	}
	return out
}

func refuse(r volume.Reason) []verdict {
	return []verdict{{refusals: []refusal{{final, r.Sentence()}}}}
}

// place is every verdict for the delayed claims.
func (m *model) place(n *corev1.Node) []verdict {
	claims := m.delayed()
	if len(claims) == 0 {
		return []verdict{{score: "0"}}
	}
	for _, c := range claims {
		if s := m.selectedNode(c); s != "" && s != n.Name {
			return refuse(volume.ReasonSelectedElsewhere)
		}
		if pv := m.reservedBy(c); pv != nil && m.has[plugin.DifferencePrebound] && m.selectedNode(c) == "" && !m.reaches(pv.Spec.NodeAffinity, n) {
			return refuse(volume.ReasonNoMatchingVolume)
		}
	}
	var out []verdict
	var failed []choice
	for _, ch := range m.greedy(n, claims, nil) {
		if good := m.complete(n, claims, ch); len(good) > 0 {
			out = append(out, good...)
		} else {
			failed = append(failed, ch)
		}
	}
	for _, ch := range failed {
		var other []verdict
		if m.has[plugin.DifferenceMatching] {
			for _, any := range m.every(n, claims, nil) {
				other = append(other, m.complete(n, claims, any)...)
			}
		}
		if len(other) == 0 {
			other = refuse(m.why(n, claims, ch))
		}
		out = append(out, other...)
	}
	return out
}

// options are what a claim could take: its reserved volume alone, or any free one.
func (m *model) options(n *corev1.Node, c *corev1.PersistentVolumeClaim) []*corev1.PersistentVolume {
	if m.selectedNode(c) != "" {
		return nil
	}
	if pv := m.reservedBy(c); pv != nil {
		if m.reaches(pv.Spec.NodeAffinity, n) {
			return []*corev1.PersistentVolume{pv}
		}
		return nil
	}
	return m.free(c, n)
}

// greedy is what upstream chooses: the smallest volume that is left, any of
// equal ones.
func (m *model) greedy(n *corev1.Node, claims []*corev1.PersistentVolumeClaim, so choice) []choice {
	if len(claims) == len(so) {
		return []choice{so}
	}
	c := claims[len(so)]
	options := m.options(n, c)
	if reserved := m.reservedBy(c); reserved != nil && slices.Contains(so, reserved) {
		// The claim stands in the pod twice, and has its volume already.
		options = m.free(c, n)
	}
	var smallest choice
	for _, pv := range options {
		switch {
		case slices.Contains(so, pv):
		case len(smallest) == 0 || capacityOf(pv) < capacityOf(smallest[0]):
			smallest = append(smallest[:0], pv)
		case capacityOf(pv) == capacityOf(smallest[0]):
			smallest = append(smallest, pv)
		}
	}
	if len(smallest) == 0 {
		smallest = choice{nil}
	}
	var out []choice
	for _, pv := range smallest {
		out = append(out, m.greedy(n, claims, append(slices.Clone(so), pv))...)
	}
	return out
}

// every is all choices there are.
func (m *model) every(n *corev1.Node, claims []*corev1.PersistentVolumeClaim, so choice) []choice {
	if len(claims) == len(so) {
		return []choice{so}
	}
	var out []choice
	for _, pv := range append(slices.Clone(m.options(n, claims[len(so)])), nil) {
		if pv == nil || !slices.Contains(so, pv) {
			out = append(out, m.every(n, claims, append(slices.Clone(so), pv))...)
		}
	}
	return out
}

func capacityOf(pv *corev1.PersistentVolume) int64 {
	q := pv.Spec.Capacity[corev1.ResourceStorage]
	return q.Value()
}

// complete are the verdicts of a choice that leaves nothing out.
func (m *model) complete(n *corev1.Node, claims []*corev1.PersistentVolumeClaim, ch choice) []verdict {
	var rest []*corev1.PersistentVolumeClaim
	var v verdict
	for _, i := range m.provisionOrder(claims) {
		c := claims[i]
		if pv := ch[i]; pv != nil {
			v.binds = append(v.binds, [2]string{c.Name, pv.Name})
			continue
		}
		if m.barred(n, c) != "" {
			return nil
		}
		rest = append(rest, c)
		v.selects = append(v.selects, c.Name)
	}
	var out []verdict
	for _, segs := range m.packings(n, rest) {
		v.score = m.score(claims, ch, rest, segs)
		out = append(out, v)
	}
	return out
}

// provisionOrder are the claims' positions: upstream provisions what is selected
// first, in the pod's order.
func (m *model) provisionOrder(claims []*corev1.PersistentVolumeClaim) []int {
	var out []int
	for _, r := range refsOf(m.pod) {
		c := m.claim(r.name)
		for i := range claims {
			if claims[i] == c && m.selectedNode(c) != "" && !slices.Contains(out, i) {
				out = append(out, i)
				break
			}
		}
	}
	for i, c := range claims {
		if m.selectedNode(c) == "" {
			out = append(out, i)
		}
	}
	return out
}

// why is the cause that a choice fails for: of the claims that it leaves without
// a volume, the first that cannot be provisioned. With joint matching a claim
// that could have had a volume, if others had moved, is not the cause.
func (m *model) why(n *corev1.Node, claims []*corev1.PersistentVolumeClaim, ch choice) volume.Reason {
	matchable := false
	if m.has[plugin.DifferenceMatching] {
		matchable = slices.ContainsFunc(m.every(n, claims, nil), func(ch choice) bool {
			for i, c := range claims {
				if ch[i] == nil && m.barred(n, c) != "" {
					return false
				}
			}
			return true
		})
	}
	for _, i := range m.provisionOrder(claims) {
		c := claims[i]
		if ch[i] != nil {
			continue
		}
		switch why := m.barred(n, c); {
		case why == "" && !m.alone(n, c):
			return volume.ReasonNotEnoughCapacity
		case why == "":
		case len(m.options(n, c)) == 0:
			return why
		case !matchable:
			return volume.ReasonNoMatchingVolume
		}
	}
	if m.has[plugin.DifferenceMatching] && !matchable {
		return volume.ReasonNoMatchingVolume
	}
	return volume.ReasonNotEnoughCapacity
}
