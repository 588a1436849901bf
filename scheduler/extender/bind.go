package extender

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
)

// postTimeout bounds the writing of a binding, and of what it is read back with.
// It comes on top of the budget: a pod whose volumes are there should not lose its
// node to the clock.
const postTimeout = 5 * time.Second

// Bind puts the pod on the node with all of its volumes (upstream: AssumePodVolumes,
// BindPodVolumes and the binding). It may be repeated: a pod that is on the node is
// a success, and a promise that was kept is gone on with. An error leaves either
// nothing promised, or what the API ties to the node.
func (s *Service) Bind(ctx context.Context, a extenderv1.ExtenderBindingArgs) error {
	leave, err := s.promises.enter(ctx, a.PodUID)
	if err != nil {
		return err
	}
	defer leave()
	pod, done, err := s.toBind(ctx, a)
	if done || err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		// kube-scheduler may have given the pod's place on the node to another since.
		return fmt.Errorf("nobody waits for the bind of pod %s/%s any more: %w", pod.Namespace, pod.Name, err)
	}
	plan, err := s.commit(pod, a.Node)
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(pod), "node", klog.KRef("", a.Node))
	logger.V(4).Info("promised volumes", "plan", plan.String())
	if err := s.carryOut(ctx, pod, plan); err != nil {
		return err
	}
	if err := s.post(ctx, pod, a.Node); err != nil {
		return err
	}
	logger.V(2).Info("pod is bound with its volumes")
	return nil
}

// toBind is the pod as it is now; done where it is on the node already.
func (s *Service) toBind(ctx context.Context, a extenderv1.ExtenderBindingArgs) (pod *corev1.Pod, done bool, err error) {
	if node, placed := s.promises.node(a.PodUID); placed {
		if node != a.Node {
			return nil, false, fmt.Errorf("pod %s/%s is bound to node %s already", a.PodNamespace, a.PodName, node)
		}
		return nil, true, nil
	}
	pod = s.cache.Pod(a.PodNamespace, a.PodName)
	if pod == nil || pod.UID != a.PodUID {
		// kube-scheduler's watch may be ahead of ours.
		if pod, err = s.client.CoreV1().Pods(a.PodNamespace).Get(ctx, a.PodName, metav1.GetOptions{}); err != nil {
			return nil, false, fmt.Errorf("reading pod %s/%s: %w", a.PodNamespace, a.PodName, err)
		}
	}
	switch {
	case pod.UID != a.PodUID:
		return nil, false, fmt.Errorf("pod %s/%s has UID %s, and not %s: it was replaced", a.PodNamespace, a.PodName, pod.UID, a.PodUID)
	case pod.DeletionTimestamp != nil:
		return nil, false, fmt.Errorf("pod %s/%s is being deleted", a.PodNamespace, a.PodName)
	case pod.Spec.NodeName == a.Node:
		return nil, true, nil
	case pod.Spec.NodeName != "":
		return nil, false, fmt.Errorf("pod %s/%s is bound to node %s already", a.PodNamespace, a.PodName, pod.Spec.NodeName)
	}
	return pod, false, nil
}

// commit judges the node once more and promises it to the pod. Between filter and
// bind others were promised space, so that it may refuse.
func (s *Service) commit(pod *corev1.Pod, name string) (binding.BindPlan, error) {
	s.committing.Lock()
	defer s.committing.Unlock()
	node := s.cache.Node(name)
	if node == nil {
		return binding.BindPlan{}, fmt.Errorf("node %s is not known", name)
	}
	plan := binding.BindPlan{Node: name}
	if binder.Judged(pod) {
		question, refusal, err := s.ask(pod)
		switch {
		case err != nil:
			return plan, err
		case refusal != nil:
			return plan, noLongerFits(pod, name, refusal.String())
		}
		j := s.binder.Judge()
		defer j.Release()
		refusals, err := j.Refuse(question, node, func() cache.Tenants { return s.tenancy.of(name) })
		switch {
		case err != nil:
			return plan, err
		case len(refusals) > 0:
			return plan, noLongerFits(pod, name, told(refusals))
		}
		plan, refusals, err = s.binder.Plan(question, node)
		switch {
		case err != nil:
			return plan, err
		case len(refusals) > 0:
			return plan, noLongerFits(pod, name, told(refusals))
		}
	}
	if err := s.promises.commit(pod, plan); err != nil {
		return plan, fmt.Errorf("promising volumes to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return plan, nil
}

func noLongerFits(pod *corev1.Pod, node, why string) error {
	return fmt.Errorf("pod %s/%s no longer fits on node %s: %s", pod.Namespace, pod.Name, node, why)
}

// carryOut writes the plan and waits for it as long as the budget lasts. Where time
// alone was missing the promise is kept.
func (s *Service) carryOut(ctx context.Context, pod *corev1.Pod, plan binding.BindPlan) error {
	if plan.Empty() {
		return nil
	}
	// Whoever asked may go: a write that is cut off for that has no known outcome, and
	// would be nobody's to give back.
	whole, cancelWrite := context.WithTimeout(context.WithoutCancel(ctx), s.budget)
	defer cancelWrite()
	bounded, cancel := context.WithTimeout(ctx, s.budget)
	defer cancel()
	attempt := s.binder.Begin(pod, plan)
	defer attempt.End()
	s.promises.begin(pod.UID, attempt)
	err := s.sight(bounded, pod)
	if err == nil {
		err = attempt.Write(whole)
	}
	if err == nil {
		err = attempt.Await(bounded)
		if err != nil && bounded.Err() != nil && attempt.Hopeless() == nil {
			s.promises.keep(pod.UID)
			return fmt.Errorf("volumes of pod %s/%s are not ready on node %s after %s; what was promised is kept, and the next bind goes on: %w",
				pod.Namespace, pod.Name, plan.Node, s.budget, err)
		}
	}
	if err != nil {
		attempt.Undo(ctx)
		s.promises.release(pod.UID)
		return fmt.Errorf("binding volumes of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// sight waits until the informer has the pod: an attempt takes one that it does not see
// for one that is gone, and kube-scheduler's watch may be ahead of ours.
func (s *Service) sight(ctx context.Context, pod *corev1.Pod) error {
	w := s.cache.Wait(cache.PodKey(pod.Namespace + "/" + pod.Name))
	defer s.cache.Stop(w)
	seen := func() bool {
		now := s.cache.Pod(pod.Namespace, pod.Name)
		return now != nil && now.UID == pod.UID
	}
	if seen() {
		return nil
	}
	// Of one that is gone no event may come any more.
	now, err := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("reading pod %s/%s: %w", pod.Namespace, pod.Name, err)
	case now.UID != pod.UID:
		return fmt.Errorf("pod %s/%s was replaced by another of its name", pod.Namespace, pod.Name)
	}
	for !seen() {
		select {
		case <-w.C:
		case <-ctx.Done():
			return fmt.Errorf("pod %s/%s is gone, or the extender's watch of the API server lags behind: %w", pod.Namespace, pod.Name, context.Cause(ctx))
		}
	}
	return nil
}

// post writes the pod's binding. Where its outcome is unknown the pod tells.
func (s *Service) post(ctx context.Context, pod *corev1.Pod, node string) error {
	// Whoever asked may be gone; the volumes are there, and so should the pod be.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postTimeout)
	defer cancel()
	pods := s.client.CoreV1().Pods(pod.Namespace)
	err := pods.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err == nil {
		s.promises.placed(pod.UID)
		return nil
	}
	err = fmt.Errorf("binding pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err)
	now, readErr := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(readErr), readErr == nil && now.UID != pod.UID:
		s.promises.release(pod.UID)
	case readErr != nil:
		// Nobody knows. The pod's next event or the next bind tells, or time.
		s.promises.keep(pod.UID)
	case now.Spec.NodeName == node:
		s.promises.placed(pod.UID)
		return nil
	default:
		s.promises.release(pod.UID)
	}
	return err
}
