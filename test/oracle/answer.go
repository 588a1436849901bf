package oracle

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/volume"
)

// answer is what a side said, in words that both sides can say.
type answer struct {
	// pre is PreFilter's code and sentence, preScore PreScore's code.
	pre, preScore string
	// nodes: node → verdict; dry the same without the evicted pod.
	nodes, dry map[string]string
	// writes are what Reserve and PreBind did for the node asked for: volumes
	// that were reserved, claims that were selected, volumes given back.
	node   string
	writes string
	// exact is what BerthVolumes said, for those who have to say just that.
	exact verdicts
}

// detailed marks a sentence that a detail follows.
const detailed = "…"

// words are a status's code and sentences. Where two plugins answer, the graver
// code counts.
func words(statuses ...*fwk.Status) string {
	code := fwk.Success
	var sentences []string
	for _, s := range statuses {
		if grave(s.Code()) > grave(code) {
			code = s.Code()
		}
	}
	if code == fwk.Error {
		return "Error"
	}
	for _, s := range statuses {
		if s.IsSuccess() {
			continue
		}
		for _, r := range s.Reasons() {
			if sentence := sentenceOf(r); !slices.Contains(sentences, sentence) {
				sentences = append(sentences, sentence)
			}
		}
	}
	slices.Sort(sentences)
	return strings.Join(append([]string{code.String()}, sentences...), "; ")
}

func sentenceOf(reason string) string {
	missing := volume.ReasonDriverMissing.Sentence()
	if strings.HasSuffix(reason, missing) {
		return missing
	}
	sentence, detail, _ := strings.Cut(reason, ": ")
	if detail != "" {
		return sentence + detailed
	}
	return sentence
}

func grave(c fwk.Code) int {
	return slices.Index([]fwk.Code{fwk.Success, fwk.Skip, fwk.Unschedulable, fwk.UnschedulableAndUnresolvable, fwk.Error}, c)
}

// ask puts the world's question to a side. chosen is the node to bind on, empty
// for none.
func (r *rig) ask(w *world, chosen string) answer {
	a := answer{nodes: map[string]string{}, dry: map[string]string{}, node: chosen}
	c, pre := r.begin(w.pod)
	a.pre, a.exact = words(pre), newVerdicts()
	if !pre.IsSuccess() {
		for _, info := range r.infos {
			a.exact.nodes[info.Node().Name] = exactly(pre)
		}
		return a
	}
	for _, info := range r.infos {
		name := info.Node().Name
		s := c.filter(info)
		a.nodes[name] = words(s...)
		if a.nodes[name] == fwk.Success.String() {
			score := c.score(info)
			a.nodes[name] += " " + score
			a.exact.scores[name] = tenths(score)
		}
		a.exact.nodes[name] = exactly(s...)
		if dry := without(r.ctx, info, w.evicted); dry != nil {
			s := c.filter(dry)
			a.dry[name] = words(s...)
			a.exact.dry[name] = exactly(s...)
		}
	}
	if !c.skip {
		a.preScore = words(c.binder.PreScore(r.ctx, c.state, w.pod, r.infos))
	}
	if chosen != "" && strings.HasPrefix(a.nodes[chosen], fwk.Success.String()) {
		r.outdate(w)
		a.writes = c.bind(chosen)
		a.exact.node, a.exact.writes = chosen, r.effects()
	}
	return a
}

// without is the node without a pod; nil where the pod is not there.
func without(ctx context.Context, info fwk.NodeInfo, pod string) fwk.NodeInfo {
	for _, p := range info.GetPods() {
		if p.GetPod().Name == pod {
			dry := info.Snapshot()
			if err := dry.RemovePod(klog.FromContext(ctx), p.GetPod()); err == nil {
				return dry
			}
		}
	}
	return nil
}

// score is in words. Upstream panics where an object publishes only a maximum.
func (c *cycle) score(info fwk.NodeInfo) (out string) {
	if c.skip {
		return "0"
	}
	defer func() {
		if recover() != nil {
			out = "panic"
		}
	}()
	n, s := c.binder.Score(c.ctx, c.state, c.pod, info)
	if !s.IsSuccess() {
		return words(s)
	}
	return strconv.FormatInt(n, 10)
}

// bind reserves and writes, with a context that is over: both sides write all
// the same, and give up waiting at once.
func (c *cycle) bind(node string) string {
	if c.skip {
		return "nothing"
	}
	if s := c.binder.Reserve(c.ctx, c.state, c.pod, node); !s.IsSuccess() {
		return "Reserve " + words(s)
	}
	defer c.binder.Unreserve(c.ctx, c.state, c.pod, node)
	_, s := c.binder.PreBindPreFlight(c.ctx, c.state, c.pod, node)
	if s.IsSkip() {
		return "nothing"
	}
	over, cancel := context.WithCancel(c.ctx)
	cancel()
	c.written = nil
	s = c.binder.PreBind(over, c.state, c.pod, node)
	return words(s) + ": " + strings.Join(c.effects(), "; ")
}

// effects are what the writes changed, in words, sorted; updates that change
// nothing do not count.
func (s *server) effects() []string {
	var out []string
	for _, o := range s.written {
		switch o := o.(type) {
		case *corev1.PersistentVolume:
			if o.Spec.ClaimRef == nil {
				out = append(out, "undo "+o.Name)
				continue
			}
			out = append(out, fmt.Sprintf("bind %s to %s %s by controller %q", o.Spec.ClaimRef.Name, o.Name, o.Spec.ClaimRef.UID, o.Annotations[volume.AnnBoundByController]))
		case *corev1.PersistentVolumeClaim:
			out = append(out, fmt.Sprintf("select %s for %s", o.Annotations[volume.AnnSelectedNode], o.Name))
		}
	}
	slices.Sort(out)
	return out
}
