package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
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
	if err := p.bind(ctx, pod, *s.plan); err != nil {
		return fwk.AsStatus(fmt.Errorf("binding volumes: %w", err))
	}
	klog.FromContext(ctx).V(2).Info("volumes are bound", "pod", klog.KObj(pod), "node", klog.KRef("", node))
	return nil
}

// bind writes a plan and waits for it.
func (p *Plugin) bind(ctx context.Context, pod *corev1.Pod, plan binding.BindPlan) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()

	// Registered before the first write, so that no change is missed.
	waiter := p.cache.Wait(waitKeys(pod, plan)...)
	defer p.cache.Stop(waiter)

	written, err := p.write(ctx, plan)
	if err == nil {
		err = p.await(ctx, waiter, pod, plan, written)
	}
	if err != nil {
		p.undo(ctx, pod, plan, written)
	}
	return err
}

// await returns when everything is bound, or when waiting is of no use.
func (p *Plugin) await(ctx context.Context, waiter *cache.Waiter, pod *corev1.Pod, plan binding.BindPlan, written writes) error {
	t := teller{plugin: p, pod: pod, told: map[wait]struct{}{}}
	defer t.stop()
	for {
		waiting, err := p.awaited(pod, plan, written)
		if err != nil {
			return err
		}
		if waiting == (wait{}) {
			return nil
		}
		t.watch(waiting)
		select {
		case <-waiter.C:
		case <-t.due():
			t.tell()
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", waiting.text, context.Cause(ctx))
		}
	}
}

// waitKeys are the objects whose change may finish or fail a plan. The volume
// of a provisioned claim is unknown yet; it pokes the claim in its claimRef.
func waitKeys(pod *corev1.Pod, plan binding.BindPlan) []string {
	keys := make([]string, 0, 2+2*len(plan.Binds)+len(plan.Selects))
	keys = append(keys, cache.PodKey(pod.Namespace+"/"+pod.Name), cache.NodeKey(plan.Node))
	for _, b := range plan.Binds {
		keys = append(keys, cache.ClaimKey(b.Claim), cache.VolumeKey(b.Volume))
	}
	for _, s := range plan.Selects {
		keys = append(keys, cache.ClaimKey(s.Claim))
	}
	return keys
}
