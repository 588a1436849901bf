package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/binding"
)

// Reserve implements fwk.ReservePlugin (upstream: AssumePodVolumes). It may run
// again after Unreserve with the same state, as gang cycles do: the plan is
// made anew each time, from a question that never changes.
func (p *Plugin) Reserve(ctx context.Context, cs fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s, err := readState(cs)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if s.none {
		return nil
	}
	if s.plan != nil {
		// Reserved before and not given back: one pod holds one plan.
		p.cache.Forget(*s.plan, string(pod.UID))
		s.plan = nil
	}
	plan, status := p.plan(s, node)
	if !status.IsSuccess() {
		return status
	}
	if err := p.cache.Assume(plan, string(pod.UID)); err != nil {
		return fwk.AsStatus(fmt.Errorf("reserving volumes: %w", err))
	}
	s.plan = &plan
	p.waiting.forget(pod.UID)
	klog.FromContext(ctx).V(4).Info("reserved volumes", "pod", klog.KObj(pod), "node", klog.KRef("", node), "plan", plan.String())
	return nil
}

// plan plans the pod's volumes on the node as the cycle has it.
func (p *Plugin) plan(s *state, node string) (binding.BindPlan, *fwk.Status) {
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return binding.BindPlan{}, fwk.AsStatus(fmt.Errorf("reading node %s: %w", node, err))
	}
	switch plan, refusals, err := p.binder.Plan(s.question, info.Node()); {
	case err != nil:
		return binding.BindPlan{}, fwk.AsStatus(err)
	case len(refusals) > 0:
		return binding.BindPlan{}, statusOf(refusals)
	default:
		return plan, nil
	}
}

// Unreserve implements fwk.ReservePlugin (upstream: RevertAssumedPodVolumes).
// It may run without Reserve, and more than once.
func (p *Plugin) Unreserve(ctx context.Context, cs fwk.CycleState, pod *corev1.Pod, node string) {
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
func (p *Plugin) PreBindPreFlight(_ context.Context, cs fwk.CycleState, _ *corev1.Pod, node string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
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
