package plugin

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/cache"
)

// Filter implements fwk.FilterPlugin. It changes nothing, so that dry runs and
// simulations may call it as they like.
func (p *Plugin) Filter(_ context.Context, cs fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	if p.resizeOnly(pod) {
		return nil
	}
	s, err := readState(cs)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if s.none {
		return nil
	}
	if info.Node() == nil {
		return fwk.AsStatus(errors.New("node not found"))
	}
	j := p.binder.Judge()
	defer j.Release()
	refusals, err := j.Refuse(s.question, info.Node(), func() cache.Tenants { return tenantsOf(info) })
	switch {
	case err != nil:
		return fwk.AsStatus(err)
	case len(refusals) > 0:
		return s.said.status(refusals)
	}
	return nil
}

// PreScore implements fwk.PreScorePlugin: pods that consume no storage need no
// score from each node.
func (p *Plugin) PreScore(_ context.Context, cs fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	s, err := readState(cs)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if s.none || len(s.question.Pod.Delayed) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score implements fwk.ScorePlugin.
func (p *Plugin) Score(_ context.Context, cs fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	s, err := readState(cs)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	if s.none || len(s.question.Pod.Delayed) == 0 {
		return 0, nil
	}
	j := p.binder.Judge()
	defer j.Release()
	score, err := j.Score(s.question, info.Node())
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return score, nil
}

// ScoreExtensions implements fwk.ScorePlugin: scores span the whole scale as
// they are.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }
