package oracle

import (
	"math"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/volume"
)

// barred is why a claim cannot be provisioned on the node whatever is free there.
func (m *model) barred(n *corev1.Node, c *corev1.PersistentVolumeClaim) volume.Reason {
	sc := m.class(className(c))
	switch {
	case m.has[plugin.DifferencePrebound] && m.selectedNode(c) == "" && m.reservedBy(c) != nil:
		return volume.ReasonNoMatchingVolume
	case sc.Provisioner == volume.NoProvisioner:
		return volume.ReasonNoMatchingVolume
	case !allowed(sc, n):
		return volume.ReasonTopologyNotAllowed
	case m.has[plugin.DifferenceSource] && !m.sourceReaches(c, sc, n):
		return volume.ReasonSourceElsewhere
	}
	return ""
}

func allowed(sc *storagev1.StorageClass, n *corev1.Node) bool {
	if len(sc.AllowedTopologies) == 0 {
		return true
	}
	return slices.ContainsFunc(sc.AllowedTopologies, func(t corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			v, there := n.Labels[e.Key]
			return !there || !slices.Contains(e.Values, v)
		})
	})
}

// sourceReaches: a clone goes where its origin is, or is being made.
func (m *model) sourceReaches(c *corev1.PersistentVolumeClaim, sc *storagev1.StorageClass, n *corev1.Node) bool {
	if c.Spec.DataSource == nil || c.Spec.DataSource.APIGroup != nil {
		return true
	}
	origin := m.claim(c.Spec.DataSource.Name)
	if origin == nil {
		return true
	}
	if pv := m.volume(origin.Spec.VolumeName); pv != nil {
		driver, _ := driverOfVolume(pv)
		return driver != driverOfClass(sc) || m.reaches(pv.Spec.NodeAffinity, n)
	}
	node, of := m.selectedNode(origin), m.class(className(origin))
	return node == "" || of == nil || of.Provisioner != sc.Provisioner || node == n.Name
}

// segment is a capacity object as the model sees it from a node.
type segment struct {
	*storagev1.CSIStorageCapacity
	pool string
	// left is capacity, less what is promised.
	left int64
}

func (m *model) segments(n *corev1.Node, class string) []segment {
	var out []segment
	for _, o := range m.capacities {
		if o.StorageClassName != class || o.NodeTopology == nil || o.Capacity == nil && o.MaximumVolumeSize == nil {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(o.NodeTopology)
		if err != nil || !selector.Matches(labels.Set(n.Labels)) {
			continue
		}
		s := segment{CSIStorageCapacity: o, pool: poolOf(o)}
		if o.Capacity != nil {
			s.left = o.Capacity.Value()
		}
		if m.has[plugin.DifferenceHolds] {
			s.left -= m.promised(o)
		}
		out = append(out, s)
	}
	return out
}

func poolOf(o *storagev1.CSIStorageCapacity) string {
	if p := o.Annotations[volume.AnnotationPool]; p != "" {
		return p
	}
	return "object " + o.Name
}

// promised is what is not yet inside an object's capacity.
func (m *model) promised(o *storagev1.CSIStorageCapacity) int64 {
	var sum int64
	seen, numbered := strconv.ParseInt(o.Annotations[volume.AnnotationAllocation], 10, 64)
	for _, pv := range m.volumes {
		is, err := strconv.ParseInt(pv.Annotations[volume.AnnotationAllocation], 10, 64)
		if numbered == nil && err == nil && pv.Annotations[volume.AnnotationPool] == poolOf(o) && is > seen {
			sum += capacityOf(pv)
		}
	}
	for _, c := range m.claims {
		node := c.Annotations[volume.AnnSelectedNode]
		if node == "" {
			node = m.everSelected(c)
		}
		at := slices.IndexFunc(m.nodes, func(n *corev1.Node) bool { return n.Name == node })
		arrived := slices.ContainsFunc(m.volumes, func(pv *corev1.PersistentVolume) bool {
			return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.UID
		})
		if at < 0 || arrived || c.Status.Phase == corev1.ClaimLost {
			continue
		}
		without := &model{world: m.world}
		if slices.ContainsFunc(without.segments(m.nodes[at], className(c)), func(s segment) bool { return s.pool == poolOf(o) }) {
			if sum += bytesOf(c); sum < 0 {
				return math.MaxInt64
			}
		}
	}
	return sum
}

// everSelected is the node that another pod has the claim made on.
func (m *model) everSelected(c *corev1.PersistentVolumeClaim) string {
	for _, o := range m.others {
		if o.claim == c.Name && o.volume == "" {
			return o.node
		}
	}
	return ""
}

// admits reports whether a segment alone could take the claim.
func (m *model) admits(s segment, c *corev1.PersistentVolumeClaim) bool {
	byMost := s.MaximumVolumeSize == nil || m.measuredBytes(c) <= s.MaximumVolumeSize.Value()
	byFree := s.Capacity == nil || m.measuredBytes(c) <= s.left
	if s.MaximumVolumeSize != nil && !m.has[plugin.DifferenceBoundedAndFree] {
		return byMost
	}
	return byMost && byFree
}

// unmeasured: no capacity question arises.
func (m *model) unmeasured(c *corev1.PersistentVolumeClaim) bool {
	if m.has[plugin.DifferenceSelectedHere] && m.selectedNode(c) != "" {
		return true
	}
	_, asks := c.Spec.Resources.Requests[corev1.ResourceStorage]
	d := m.driver(m.class(className(c)).Provisioner)
	return !asks || d == nil || d.Spec.StorageCapacity == nil || !*d.Spec.StorageCapacity
}

// refusedLately: the node's driver gave a claim of the class back, no larger.
func (m *model) refusedLately(n *corev1.Node, c *corev1.PersistentVolumeClaim) bool {
	for name, node := range m.gaveBack {
		other := m.claim(name)
		if node == n.Name && other != nil && className(other) == className(c) && bytesOf(c) >= bytesOf(other) {
			return m.has[plugin.DifferenceRefused]
		}
	}
	return false
}

// wary shuns nodes that refused lately, if any does that takes the pod: the pods
// here tolerate nothing, and ask for nothing but volumes.
func (m *model) wary() {
	m.shun = true
	for _, n := range m.nodes {
		if len(n.Spec.Taints) == 0 && slices.ContainsFunc(m.judge(n), func(v verdict) bool { return len(v.refusals) == 0 }) {
			return
		}
	}
	m.shun = false
}

func (m *model) alone(n *corev1.Node, c *corev1.PersistentVolumeClaim) bool {
	if m.shun && m.refusedLately(n, c) {
		return false
	}
	return m.unmeasured(c) || slices.ContainsFunc(m.segments(n, className(c)), func(s segment) bool { return m.admits(s, c) })
}

// packings are the ways to give each claim a segment; nil stands for unmeasured.
func (m *model) packings(n *corev1.Node, claims []*corev1.PersistentVolumeClaim) [][]*segment {
	out := [][]*segment{nil}
	for _, c := range claims {
		if !m.alone(n, c) {
			return nil
		}
		options := m.admitting(n, c)
		var next [][]*segment
		for _, so := range out {
			for _, s := range options {
				if with := append(slices.Clone(so), s); m.together(claims, with) {
					next = append(next, with)
				}
			}
		}
		out = next
	}
	return out
}

// admitting are the segments that a claim may be put into.
func (m *model) admitting(n *corev1.Node, c *corev1.PersistentVolumeClaim) []*segment {
	if m.unmeasured(c) {
		return []*segment{nil}
	}
	var out []*segment
	for _, s := range m.segments(n, className(c)) {
		if m.admits(s, c) {
			out = append(out, &s)
		}
	}
	return out
}

// together reports whether the pools hold what is put into them.
func (m *model) together(claims []*corev1.PersistentVolumeClaim, segs []*segment) bool {
	if !m.has[plugin.DifferenceJointCapacity] {
		return true
	}
	sums := map[string]int64{}
	for i, s := range segs {
		if s != nil {
			sums[s.pool] += m.measuredBytes(claims[i])
		}
	}
	shares := map[string]int{}
	for _, s := range segs {
		if s != nil {
			shares[s.pool]++
		}
	}
	for _, s := range segs {
		if s != nil && s.Capacity != nil && shares[s.pool] > 1 && sums[s.pool] > s.left {
			return false
		}
	}
	return true
}

// score is in words; shape is the default one, where a class used to u percent
// gives 100 - u.
func (m *model) score(claims []*corev1.PersistentVolumeClaim, ch choice, rest []*corev1.PersistentVolumeClaim, segs []*segment) string {
	requested, capacity := map[string]int64{}, map[string]int64{}
	matched := false
	for i, c := range claims {
		if pv := ch[i]; pv != nil {
			matched = true
			requested[className(c)] += bytesOf(c)
			capacity[className(c)] += capacityOf(pv)
		}
	}
	counted := map[string]bool{}
	for i, c := range rest {
		s := segs[i]
		if matched || s == nil {
			continue
		}
		requested[className(c)] += m.measuredBytes(c)
		switch key := className(c) + " " + s.pool; {
		case s.Capacity == nil && !m.has[plugin.DifferenceScoreUnpublished]:
			return "panic"
		case !m.has[plugin.DifferenceScorePools]:
			capacity[className(c)] = valueOf(s)
		case !counted[key]:
			counted[key] = true
			if s.Capacity != nil {
				capacity[className(c)] += max(s.left, 0)
			}
		}
	}
	var sum int64
	for class, r := range requested {
		if capacity[class] != 0 && r <= capacity[class] {
			sum += 100 - r*100/capacity[class]
		}
	}
	if len(requested) == 0 {
		return "0"
	}
	return strconv.FormatInt(int64(math.Round(float64(sum)/float64(len(requested)))), 10)
}

func valueOf(s *segment) int64 {
	if s.Capacity == nil {
		return 0
	}
	return s.Capacity.Value()
}
