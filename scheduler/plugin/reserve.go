package plugin

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/binding"
)

// Reserve implements fwk.ReservePlugin (upstream: AssumePodVolumes). It may run
// again after Unreserve with the same state, as gang cycles do: the plan is
// made from the verdict each time and the verdict never changes.
func (p *Plugin) Reserve(ctx context.Context, cs fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	s, err := readState(cs)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if s.none {
		return nil
	}
	verdict, status := p.verdict(s, node)
	if !status.IsSuccess() {
		return status
	}
	plan := binding.Plan(node, verdict)
	if err := p.cache.Assume(plan, string(pod.UID)); err != nil {
		return fwk.AsStatus(fmt.Errorf("reserving volumes: %w", err))
	}
	s.plan = &plan
	klog.FromContext(ctx).V(4).Info("reserved volumes", "pod", klog.KObj(pod), "node", klog.KRef("", node), "plan", plan.String())
	return nil
}

// verdict is Filter's, or made now for a node that Filter did not see in this
// cycle: what is not judged must not count as bound.
func (p *Plugin) verdict(s *state, node string) (binding.Verdict, *fwk.Status) {
	if v, ok := s.verdict(node); ok {
		return v, nil
	}
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return binding.Verdict{}, fwk.AsStatus(fmt.Errorf("reading node %s: %w", node, err))
	}
	v := binding.Find(s.question.Pod, nodeOf(info.Node()), s.question.View)
	if !v.OK() {
		return v, statusOf(v.Refusals)
	}
	s.keep(node, v)
	return v, nil
}

// Unreserve implements fwk.ReservePlugin (upstream: RevertAssumedPodVolumes).
// It may run without Reserve, and more than once.
func (p *Plugin) Unreserve(ctx context.Context, cs fwk.CycleState, pod *v1.Pod, node string) {
	s, err := readState(cs)
	if err != nil || s.plan == nil {
		return
	}
	p.cache.Forget(*s.plan, string(pod.UID))
	s.plan = nil
	klog.FromContext(ctx).V(4).Info("released volumes", "pod", klog.KObj(pod), "node", klog.KRef("", node))
}

// PreBindPreFlight implements fwk.PreBindPlugin. PreBind may run beside those
// of other plugins: it writes volumes and claims, which they do not.
func (p *Plugin) PreBindPreFlight(_ context.Context, cs fwk.CycleState, _ *v1.Pod, node string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	result := &fwk.PreBindPreFlightResult{AllowParallel: true}
	s, err := readState(cs)
	switch {
	case err != nil:
		return result, fwk.AsStatus(err)
	case s.none:
		return result, fwk.NewStatus(fwk.Skip)
	case s.plan == nil || s.plan.Node != node:
		return result, fwk.AsStatus(fmt.Errorf("nothing is reserved for the pod on node %s", node))
	case s.plan.Empty():
		return result, fwk.NewStatus(fwk.Skip)
	}
	return result, nil
}
