package oracle

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/volume"
)

// model answers as upstream does, but for the differences that it has. Its
// answers are sets: where upstream takes any of several, each of them.
type model struct {
	*world
	has map[plugin.Difference]bool
	// shun: a node that gave a claim back is refused.
	shun bool
}

func modelOf(w *world, differences ...plugin.Difference) *model {
	m := &model{world: w, has: map[plugin.Difference]bool{}}
	for _, d := range differences {
		m.has[d] = true
	}
	return m
}

// possible are all answers that a side may give.
type possible struct {
	pre, preScore string
	// nodes and dry: node → words; outcomes: node → what Reserve and PreBind do.
	nodes, dry, writes map[string][]string
}

func (m *model) answers() possible {
	out := possible{nodes: map[string][]string{}, dry: map[string][]string{}, writes: map[string][]string{}}
	refs := refsOf(m.pod)
	inline := slices.ContainsFunc(m.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.AWSElasticBlockStore != nil })
	if len(refs) == 0 && !inline {
		out.pre = "Skip"
		return out
	}
	if out.pre = m.preFilter(refs); out.pre != "Success" {
		return out
	}
	m.wary()
	for _, n := range m.nodes {
		verdicts := m.judge(n)
		for _, v := range verdicts {
			include(out.nodes, n.Name, m.words(v, m.attach(n, false)))
			include(out.writes, n.Name, m.writes(n, v))
			if m.runsOn(m.evicted, n.Name) {
				v.score = ""
				include(out.dry, n.Name, m.words(v, m.attach(n, true)))
			}
		}
	}
	out.preScore = "Success"
	if m.has[plugin.DifferencePreScore] && len(m.delayed()) == 0 {
		out.preScore = "Skip"
	}
	if len(refs) == 0 {
		out.preScore = ""
		if m.has[plugin.DifferencePreScore] {
			out.preScore = "Skip"
		}
	}
	return out
}

func include(m map[string][]string, key, s string) {
	if !slices.Contains(m[key], s) {
		m[key] = append(m[key], s)
		slices.Sort(m[key])
	}
}

func (m *model) runsOn(pod, node string) bool {
	return slices.ContainsFunc(m.running, func(p *corev1.Pod) bool { return p.Name == pod && p.Spec.NodeName == node })
}

// ref is a pod's reference to a claim.
type ref struct {
	name  string
	owned bool
}

func refsOf(p *corev1.Pod) []ref {
	var out []ref
	for i := range p.Spec.Volumes {
		switch v := &p.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			out = append(out, ref{v.PersistentVolumeClaim.ClaimName, false})
		case v.Ephemeral != nil:
			out = append(out, ref{p.Name + "-" + v.Name, true})
		}
	}
	return out
}

// preFilter is code and sentence.
func (m *model) preFilter(refs []ref) string {
	say := func(reason volume.Reason, theirs string) string {
		if m.has[plugin.DifferenceClaimErrors] {
			theirs = reason.Sentence()
		}
		return "UnschedulableAndUnresolvable; " + m.detail(theirs)
	}
	for _, r := range refs {
		c := m.claim(r.name)
		switch {
		case c == nil && r.owned:
			return say(volume.ReasonClaimMissing, fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", r.name))
		case c == nil:
			return say(volume.ReasonClaimMissing, fmt.Sprintf("persistentvolumeclaim %q not found", r.name))
		case c.Status.Phase == corev1.ClaimLost:
			return say(volume.ReasonClaimLost, fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", r.name, c.Spec.VolumeName))
		case c.DeletionTimestamp != nil:
			return say(volume.ReasonClaimDeleting, fmt.Sprintf("persistentvolumeclaim %q is being deleted", r.name))
		case r.owned && ephemeral.VolumeIsForPod(m.pod, c) != nil:
			return say(volume.ReasonClaimNotOwned, ephemeral.VolumeIsForPod(m.pod, c).Error())
		}
	}
	for _, r := range refs {
		if c := m.claim(r.name); !isBound(c) && !m.isDelayed(c) {
			return "UnschedulableAndUnresolvable; " + m.detail(volume.ReasonClaimUnbound.Sentence())
		}
	}
	return "Success"
}

func (m *model) detail(sentence string) string {
	if m.has[plugin.DifferenceDetails] {
		return sentence + detailed
	}
	return sentence
}

func isBound(c *corev1.PersistentVolumeClaim) bool {
	_, completed := c.Annotations[volume.AnnBindCompleted]
	return c.Spec.VolumeName != "" && completed
}

func (m *model) isDelayed(c *corev1.PersistentVolumeClaim) bool {
	sc := m.class(className(c))
	return sc != nil && *sc.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && c.Spec.VolumeName == ""
}

func className(c *corev1.PersistentVolumeClaim) string { return *c.Spec.StorageClassName }

func bytesOf(c *corev1.PersistentVolumeClaim) int64 {
	q := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if q.CmpInt64(math.MaxInt64) > 0 {
		return math.MaxInt64
	}
	return q.Value()
}

// measuredBytes is what the side asks a capacity for.
func (m *model) measuredBytes(c *corev1.PersistentVolumeClaim) int64 {
	if m.has[plugin.DifferenceHuge] {
		return bytesOf(c)
	}
	q := c.Spec.Resources.Requests[corev1.ResourceStorage]
	return q.Value()
}

// delayed are the pod's claims to place, as upstream orders them. One that the
// pod names twice is two of them.
func (m *model) delayed() []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for _, r := range refsOf(m.pod) {
		c := m.claim(r.name)
		if isBound(c) || m.has[plugin.DifferenceClaimTwice] && slices.Contains(out, c) {
			continue
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b *corev1.PersistentVolumeClaim) int { return int(bytesOf(a)/1e6 - bytesOf(b)/1e6) })
	return out
}

// refusal is code and sentence of one plugin, empty for none.
type refusal struct{ code, sentence string }

// verdict is one thing that may be decided for a node.
type verdict struct {
	refusals []refusal
	// binds are claims and their volumes; selects are claims to provision.
	binds   [][2]string
	selects []string
	score   string
}

// words are those of answer.nodes.
func (m *model) words(v verdict, attach refusal) string {
	all := slices.Clone(v.refusals)
	if attach.code != "" {
		all = append(all, attach)
	}
	code := "Success"
	var sentences []string
	for _, c := range []string{"Unschedulable", "UnschedulableAndUnresolvable", "Error"} {
		if slices.ContainsFunc(all, func(r refusal) bool { return r.code == c }) {
			code = c
		}
	}
	switch code {
	case "Error":
		return code
	case "Success":
		return strings.TrimSuffix(code+" "+v.score, " ")
	}
	for _, r := range all {
		sentences = append(sentences, m.detail(r.sentence))
	}
	slices.Sort(sentences)
	return strings.Join(append([]string{code}, slices.Compact(sentences)...), "; ")
}

// writes are those of answer.writes, for a node that nothing refuses.
func (m *model) writes(n *corev1.Node, v verdict) string {
	if len(v.refusals) > 0 {
		return ""
	}
	if len(v.binds)+len(v.selects) == 0 {
		return "nothing"
	}
	var out []string
	stopped := false
	for _, b := range v.binds {
		name, pv := b[0], b[1]
		c, before := m.claim(name), m.volume(pv).Spec.ClaimRef
		by := ""
		if before == nil {
			by = "yes"
		}
		if stopped = stopped || m.fails(pv); stopped {
			break
		}
		if before == nil || before.UID == "" || !m.has[plugin.DifferenceWrites] {
			out = append(out, fmt.Sprintf("bind %s to %s %s by controller %q", name, pv, c.UID, by))
		}
		countedOn := slices.ContainsFunc(m.others, func(o other) bool { return o.volume == pv })
		if before == nil && !countedOn && m.has[plugin.DifferenceUndo] {
			out = append(out, "undo "+pv)
		}
	}
	if !stopped {
		out = append(out, m.selections(n, v)...)
	}
	slices.Sort(out)
	return "Error: " + strings.Join(out, "; ")
}

// selections are the claims that get the node, up to the first that fails.
func (m *model) selections(n *corev1.Node, v verdict) []string {
	var out []string
	for i, name := range v.selects {
		// A claim that was written already has another version by now.
		if m.fails(name) || slices.Contains(v.selects[:i], name) {
			break
		}
		if m.claim(name).Annotations[volume.AnnSelectedNode] == "" || !m.has[plugin.DifferenceWrites] {
			out = append(out, fmt.Sprintf("select %s for %s", n.Name, name))
		}
	}
	return out
}

// fails: an update of what is stale is refused, and is the last.
func (m *model) fails(name string) bool { return m.stale[name] && !m.has[plugin.DifferenceWrites] }
