package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// PreBind implements fwk.PreBindPlugin (upstream: BindPodVolumes): it writes
// the plan and waits until the PV controller and the provisioner have done
// their part. Every failure is an Error, which sends the pod to the backoff
// queue. A selected node, once written, is never taken back here: a provisioner
// may be at work on it, and only it may give the node back.
func (p *Plugin) PreBind(ctx context.Context, cs fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s, err := readState(cs)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if s.none || s.plan != nil && s.plan.Empty() {
		return nil
	}
	if s.plan == nil || s.plan.Node != node {
		return fwk.AsStatus(fmt.Errorf("nothing is reserved for the pod on node %s", node))
	}
	bounded, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := p.binder.Bind(bounded, pod, *s.plan); err != nil {
		return fwk.AsStatus(fmt.Errorf("binding volumes: %w", err))
	}
	klog.FromContext(ctx).V(2).Info("volumes are bound", "pod", klog.KObj(pod), "node", klog.KRef("", node))
	return nil
}
