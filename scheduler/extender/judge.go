package extender

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// notKnown is what a node is refused with that kube-scheduler has and the
// informers do not yet: it resolves itself.
const notKnown = "node(s) are not known to berth-extender yet"

// Filter judges the nodes for the pod. An error is something broken.
func (s *Service) Filter(ctx context.Context, pod *corev1.Pod, names []string) (*extenderv1.ExtenderFilterResult, error) {
	passed := make([]string, 0, len(names))
	result := &extenderv1.ExtenderFilterResult{
		NodeNames: &passed, FailedNodes: extenderv1.FailedNodesMap{}, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{},
	}
	if !binder.Judged(pod) {
		passed = append(passed, names...)
		return result, nil
	}
	question, refusal, err := s.ask(pod)
	switch {
	case err != nil:
		return nil, err
	case refusal != nil:
		for _, name := range names {
			result.FailedAndUnresolvableNodes[name] = refusal.String()
		}
		return result, nil
	}
	if question, err = s.binder.Shun(question, pod, s.nodes(names)); err != nil {
		return nil, err
	}
	j := s.binder.Judge()
	defer j.Release()
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		node := s.cache.Node(name)
		if node == nil {
			result.FailedNodes[name] = notKnown
			continue
		}
		refusals, err := j.Refuse(question, node, func() cache.Tenants { return s.tenancy.of(name) })
		switch {
		case err != nil:
			return nil, fmt.Errorf("judging node %s: %w", name, err)
		case len(refusals) == 0:
			passed = append(passed, name)
		case evictable(refusals):
			result.FailedNodes[name] = told(refusals)
		default:
			result.FailedAndUnresolvableNodes[name] = told(refusals)
		}
	}
	return result, nil
}

// ask reads the pod's claims and makes the question of them, or says what keeps it
// from every node.
func (s *Service) ask(pod *corev1.Pod) (*binder.Question, *volume.Refusal, error) {
	volumes, err := s.binder.Read(pod)
	if err != nil {
		return nil, nil, err
	}
	return s.binder.Ask(volumes)
}

// nodes are those of the names that the informer has.
func (s *Service) nodes(names []string) func(yield func(*corev1.Node) bool) {
	return func(yield func(*corev1.Node) bool) {
		for _, name := range names {
			if node := s.cache.Node(name); node != nil && !yield(node) {
				return
			}
		}
	}
}

// evictable reports whether evicting pods may end the refusals (as the plugin's
// codes do): attach limits alone.
func evictable(refusals []volume.Refusal) bool {
	return !slices.ContainsFunc(refusals, func(r volume.Refusal) bool { return r.Reason != volume.ReasonAttachLimit })
}

// Prioritize scores the nodes, 0 to 10.
func (s *Service) Prioritize(ctx context.Context, pod *corev1.Pod, names []string) (extenderv1.HostPriorityList, error) {
	out := make(extenderv1.HostPriorityList, 0, len(names))
	for _, name := range names {
		out = append(out, extenderv1.HostPriority{Host: name})
	}
	if !binder.Judged(pod) {
		return out, nil
	}
	question, refusal, err := s.ask(pod)
	if err != nil {
		return nil, err
	}
	if refusal != nil || len(question.Pod.Delayed) == 0 {
		return out, nil
	}
	j := s.binder.Judge()
	defer j.Release()
	for i := range out {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		node := s.cache.Node(out[i].Host)
		if node == nil {
			continue
		}
		score, err := j.Score(question, node)
		if err != nil {
			return nil, fmt.Errorf("scoring node %s: %w", out[i].Host, err)
		}
		out[i].Score = tenths(score)
	}
	return out, nil
}

// tenths takes a score of 0 to 100 to the extenders' 0 to 10, to the nearest.
func tenths(score int64) int64 {
	const scale = 100 / extenderv1.MaxExtenderPriority
	return (score + scale/2) / scale
}

// Preempt keeps, of the nodes on which kube-scheduler would evict victims, those
// that then take the pod's volumes. It adds no victim: kube-scheduler chose the
// fewest, and what an extender adds it does not weigh. A node that gave the claims
// back lately is shunned for any other of the cluster, be that a candidate or not, as
// the plugin does: nothing undoes an eviction.
func (s *Service) Preempt(ctx context.Context, pod *corev1.Pod, nodes map[string]*extenderv1.MetaVictims) (*extenderv1.ExtenderPreemptionResult, error) {
	result := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
	if !binder.Judged(pod) {
		result.NodeNameToMetaVictims = nodes
		return result, nil
	}
	question, refusal, err := s.ask(pod)
	switch {
	case err != nil:
		return nil, err
	case refusal != nil:
		return result, nil
	}
	if question, err = s.binder.Shun(question, pod, s.cache.Nodes()); err != nil {
		return nil, err
	}
	j := s.binder.Judge()
	defer j.Release()
	for name, victims := range nodes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		node := s.cache.Node(name)
		if node == nil || victims == nil {
			continue
		}
		refusals, err := j.Refuse(question, node, func() cache.Tenants { return s.tenancy.without(name, uids(victims)) })
		if err != nil {
			return nil, fmt.Errorf("judging node %s: %w", name, err)
		}
		if len(refusals) == 0 {
			result.NodeNameToMetaVictims[name] = victims
		}
	}
	return result, nil
}

func uids(victims *extenderv1.MetaVictims) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, p := range victims.Pods {
		if p != nil {
			out[types.UID(p.UID)] = true
		}
	}
	return out
}

// told are refusals in one line.
func told(refusals []volume.Refusal) string {
	texts := make([]string, 0, len(refusals))
	for _, r := range refusals {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, "; ")
}
