package binder

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
)

// Attempt is one go at a plan for a pod. It serves one goroutine.
type Attempt struct {
	*Binder
	pod     *corev1.Pod
	plan    binding.BindPlan
	waiter  *cache.Waiter
	written Written
	// earlier are the volumes that an attempt before this one reserved, and the
	// versions that say so.
	earlier map[string]string
}

// Begin watches the objects of a plan, before the first write, so that no change
// is missed. End ends it.
func (b *Binder) Begin(pod *corev1.Pod, plan binding.BindPlan) *Attempt {
	return &Attempt{
		Binder: b, pod: pod, plan: plan, waiter: b.cache.Wait(waitKeys(pod, plan)...),
		written: Written{Volumes: map[string]string{}, Claims: map[string]string{}, mine: map[string]bool{}},
	}
}

// Continue takes over what an earlier attempt at the pod reserved, so that Undo gives
// it back as its own.
func (a *Attempt) Continue(from *Attempt) {
	a.earlier = map[string]string{}
	for name, mine := range from.written.mine {
		if mine {
			a.earlier[name] = from.written.Volumes[name]
			// Undo knows of it even if this attempt writes nothing.
			a.written.Volumes[name], a.written.mine[name] = a.earlier[name], true
		}
	}
}

// End stops watching.
func (a *Attempt) End() { a.cache.Stop(a.waiter) }

// Bind writes a plan and waits until the PV controller and the provisioner have
// done their part, or ctx ends (upstream: BindPodVolumes). Where it fails it gives
// back what it reserved.
func (b *Binder) Bind(ctx context.Context, pod *corev1.Pod, plan binding.BindPlan) error {
	a := b.Begin(pod, plan)
	defer a.End()
	err := a.Write(ctx)
	if err == nil {
		err = a.Await(ctx)
	}
	if err != nil {
		a.Undo(ctx)
	}
	return err
}

// Await returns when everything is bound, or when waiting is of no use.
func (a *Attempt) Await(ctx context.Context) error {
	t := teller{Attempt: a, told: map[Waiting]struct{}{}}
	defer t.stop()
	for {
		// Asked before the look: one that ends with the last event still counts it.
		over := context.Cause(ctx)
		waiting, err := a.Awaits(a.pod, a.plan, a.written)
		switch {
		case err != nil:
			return err
		case waiting == (Waiting{}):
			return nil
		case over != nil:
			return fmt.Errorf("%s: %w", waiting.Text, over)
		}
		t.watch(waiting)
		select {
		case <-a.waiter.C:
		case <-t.due():
			t.tell()
		case <-ctx.Done():
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

// Hopeless tells why the attempt, whose writes are done, will never get what it
// waits for; nil as long as it may.
func (a *Attempt) Hopeless() error {
	_, err := a.Awaits(a.pod, a.plan, a.written)
	return err
}
