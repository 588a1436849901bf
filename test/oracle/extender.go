package oracle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// besidePlugin is the side that is held against the plugin, and not against the model.
const besidePlugin = "extender"

// verdicts are what BerthVolumes said, with every word of it: the extender has to say
// the same.
type verdicts struct {
	// nodes: node → verdict; dry the same without the evicted pod, and without
	// reasons, as preempt has none.
	nodes, dry map[string]string
	// scores are of the nodes that fit, 0 to 10.
	scores map[string]int64
	// node is what the pod was bound to, empty for none, and writes what was
	// written for it.
	node   string
	writes []string
	// before is what an extender wrote for other pods, which a plugin has reserved in
	// memory alone.
	before []string
}

func newVerdicts() verdicts {
	return verdicts{nodes: map[string]string{}, dry: map[string]string{}, scores: map[string]int64{}}
}

// What a node can be for a pod. Reasons follow the two in the middle, by which
// kube-scheduler knows where evictions are worth looking at.
const (
	verdictFits      = "fits"
	verdictEvictable = "refused, evictable: "
	verdictNever     = "refused: "
	verdictBroken    = "Error"
)

// exactly are BerthVolumes' words of a node; none where it need not be asked.
func exactly(statuses ...*fwk.Status) string {
	for _, s := range statuses {
		switch s.Code() {
		case fwk.Success, fwk.Skip:
		case fwk.Unschedulable:
			return verdictEvictable + strings.Join(s.Reasons(), "; ")
		case fwk.UnschedulableAndUnresolvable:
			return verdictNever + strings.Join(s.Reasons(), "; ")
		default:
			return verdictBroken
		}
	}
	return verdictFits
}

// roughly is a verdict without the reasons.
func roughly(verdict string) string {
	if verdict == verdictFits || verdict == verdictBroken {
		return verdict
	}
	return verdictNever
}

// tenths is a score of BerthVolumes on the extenders' scale.
func tenths(score string) int64 {
	n, err := strconv.ParseInt(score, 10, 64)
	if err != nil {
		return 0
	}
	return (n + 5) / 10
}

// kinds are answers that a run has to have seen, or it showed little.
func kinds() []string {
	return []string{
		"extender, node: fits", "extender, node: refused", "extender, node: refused, evictable",
		"extender, dry run: fits", "extender, dry run: refused", "extender, score: scored",
		"extender, writes: wrote", "extender, promise: reserved",
	}
}

// alike asks the extender what BerthVolumes was asked, and returns where it says
// anything else. was is the world before other pods had their nodes, w that after.
func alike(ctx context.Context, was, w *world, said verdicts, count map[string]int) ([]disagreement, error) {
	s, err := newService(ctx, was)
	if err != nil {
		return nil, err
	}
	for _, o := range w.others {
		refusal, err := s.promise(o) //nolint:contextcheck // the service has the only one
		if err != nil {
			return nil, err
		}
		if refusal != "" {
			return []disagreement{{besidePlugin, "promise", o.node, []string{"reserved"}, refusal}}, nil
		}
		count[besidePlugin+", promise: reserved"]++
	}
	for _, o := range w.others {
		if o.touched {
			s.touch(o)
		}
	}
	got, err := s.ask(w, said.node) //nolint:contextcheck // the service has the only one
	if err != nil {
		return nil, err
	}
	return said.unlike(got, count), nil
}

// unlike are the places where the extender says anything else.
func (v verdicts) unlike(got verdicts, count map[string]int) []disagreement {
	var out []disagreement
	check := func(what, where, plugin, extender string) {
		count[besidePlugin+", "+what+": "+kindOf(plugin)]++
		if plugin != extender {
			out = append(out, disagreement{besidePlugin, what, where, []string{plugin}, extender})
		}
	}
	nodes := slices.Sorted(maps.Keys(v.nodes))
	for _, n := range nodes {
		plugin := v.nodes[n]
		if slices.ContainsFunc(nodes, func(n string) bool { return v.nodes[n] == verdictBroken }) {
			// One broken node ends a kube-scheduler's search, whoever says so.
			plugin = verdictBroken
		}
		check("node", n, plugin, got.nodes[n])
	}
	for _, n := range slices.Sorted(maps.Keys(v.dry)) {
		check("dry run", n, roughly(v.dry[n]), got.dry[n])
	}
	for _, n := range slices.Sorted(maps.Keys(v.scores)) {
		if v.nodes[n] == got.nodes[n] {
			check("score", n, fmt.Sprint("scored: ", v.scores[n]), fmt.Sprint("scored: ", got.scores[n]))
		}
	}
	if v.node != "" {
		check("writes", v.node, lasting(v.writes, got.before), lasting(got.writes, got.before))
	}
	return out
}

// ask puts the world's question to the extender, verb by verb, and binds the pod to
// the chosen node, empty for none.
func (s *service) ask(w *world, chosen string) (verdicts, error) {
	v := newVerdicts()
	var filtered extenderv1.ExtenderFilterResult
	args := extenderv1.ExtenderArgs{Pod: w.pod, NodeNames: &s.nodes}
	if err := s.call(s.ctx, "filter", args, &filtered); err != nil {
		return v, err
	}
	for _, n := range s.nodes {
		v.nodes[n] = filteredAs(&filtered, n)
	}
	if filtered.Error != "" {
		// What is broken is so for every verb.
		if n := evictedFrom(w); n != "" {
			v.dry[n] = verdictBroken
		}
		return v, nil
	}
	var scores extenderv1.HostPriorityList
	if err := s.call(s.ctx, "prioritize", args, &scores); err != nil {
		return v, err
	}
	for _, score := range scores {
		v.scores[score.Host] = score.Score
	}
	if err := s.askPreempt(w, &v); err != nil {
		return v, err
	}
	if chosen != "" && v.nodes[chosen] == verdictFits {
		s.outdate(w)
		v.node = chosen
		v.before, s.written = s.effects(), nil
		if _, err := s.bind(w.pod, chosen); err != nil {
			return v, err
		}
		v.writes = s.effects()
	}
	return v, nil
}

// lasting are the writes but for those that were made before, and those that give
// volumes back: a plugin that runs out of time ends what it began; an extender keeps
// it for the next attempt.
func lasting(writes, before []string) string {
	left := slices.DeleteFunc(slices.Clone(writes), func(s string) bool {
		return strings.HasPrefix(s, "undo ") || slices.Contains(before, s)
	})
	return "wrote: " + strings.Join(left, "; ")
}

func evictedFrom(w *world) string {
	for _, p := range w.running {
		if p.Name == w.evicted {
			return p.Spec.NodeName
		}
	}
	return ""
}

// askPreempt asks for the node without the evicted pod.
func (s *service) askPreempt(w *world, v *verdicts) error {
	node := evictedFrom(w)
	if node == "" {
		return nil
	}
	victims := &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{{UID: "uid-" + w.evicted}}}
	var kept extenderv1.ExtenderPreemptionResult
	err := s.call(s.ctx, "preempt", extenderv1.ExtenderPreemptionArgs{
		Pod: w.pod, NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{node: victims},
	}, &kept)
	if err != nil {
		return err
	}
	v.dry[node] = verdictNever
	if kept.NodeNameToMetaVictims[node] != nil {
		v.dry[node] = verdictFits
	}
	return nil
}

// filteredAs is what filter said of a node.
func filteredAs(r *extenderv1.ExtenderFilterResult, node string) string {
	why, evictable := r.FailedNodes[node]
	never, refused := r.FailedAndUnresolvableNodes[node]
	switch fits := r.NodeNames != nil && slices.Contains(*r.NodeNames, node); {
	case r.Error != "":
		return verdictBroken
	case fits && !evictable && !refused:
		return verdictFits
	case evictable && !refused && !fits:
		return verdictEvictable + why
	case refused && !evictable && !fits:
		return verdictNever + never
	}
	return fmt.Sprintf("no one answer in %+v", r)
}
