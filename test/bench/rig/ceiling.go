package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-storage/berth/volume"
)

// PlaceBlindly writes for each pod what a scheduler writes, without a thought:
// pod i goes to node i, or to the node of the i-th free volume. Its rate is the
// most that the API server and the stand-ins allow. atOnce is how many pods are
// under way.
func (r *Rig) PlaceBlindly(ctx context.Context, w *Watch, load Workload, pods []string, nodes, atOnce int) error {
	free, err := w.freeVolumes()
	if err != nil {
		return err
	}
	if load == Static && len(free) < len(pods) {
		return fmt.Errorf("there are %d free volumes for %d pods: give more --nodes or fewer --pods", len(free), len(pods))
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, name := range pods {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if load == Static {
				return r.placeStatic(ctx, w, name, free[i])
			}
			return r.placeDynamic(ctx, w, name, nodeName(i%nodes))
		})
	}
	return group.Wait()
}

// freeVolumes takes one volume of each node in turn, as schedulers spread pods.
func (w *Watch) freeVolumes() ([]*corev1.PersistentVolume, error) {
	all, err := corelisters.NewPersistentVolumeLister(w.volumes.GetIndexer()).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing the volumes: %w", err)
	}
	var free []*corev1.PersistentVolume
	for _, pv := range all {
		if pv.Spec.ClaimRef == nil {
			free = append(free, pv)
		}
	}
	return free, nil
}

func (r *Rig) placeDynamic(ctx context.Context, w *Watch, name, node string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, volume.AnnSelectedNode, node)
	_, err := r.client.CoreV1().PersistentVolumeClaims(Namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("selecting a node for claim %s: %w", name, err)
	}
	return r.bindPod(ctx, w, name, node)
}

func (r *Rig) placeStatic(ctx context.Context, w *Watch, name string, free *corev1.PersistentVolume) error {
	c, err := w.claim(name)
	if err != nil {
		return err
	}
	pv := free.DeepCopy()
	pv.Spec.ClaimRef = refTo(c)
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, volume.AnnBoundByController, "yes")
	if _, err := r.client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("reserving volume %s: %w", pv.Name, err)
	}
	return r.bindPod(ctx, w, name, nodeOf(pv))
}

// bindPod notes on the pod where it will go, as kube-scheduler does when a
// plugin has something to wait for (KEP-5278), waits for the claim, binds the pod,
// and says so in an event.
func (r *Rig) bindPod(ctx context.Context, w *Watch, name, node string) error {
	patch := fmt.Sprintf(`{"status":{"nominatedNodeName":%q}}`, node)
	_, err := r.client.CoreV1().Pods(Namespace).Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("nominating the node of pod %s: %w", name, err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("waiting for claim %s: %w", name, ctx.Err())
	case <-w.claimBound(name):
	}
	to := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	if err := r.client.CoreV1().Pods(Namespace).Bind(ctx, to, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding pod %s: %w", name, err)
	}
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace}, EventTime: metav1.NowMicro(),
		ReportingController: "benchmark", ReportingInstance: "benchmark", Type: corev1.EventTypeNormal,
		Reason: "Scheduled", Action: "Binding", Note: fmt.Sprintf("Successfully assigned %s/%s to %s", Namespace, name, node),
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: Namespace, Name: name},
	}
	if _, err := r.client.EventsV1().Events(Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("telling of pod %s: %w", name, err)
	}
	return nil
}

// errBudget ends a wait whose time is over.
var errBudget = errors.New("the time is over")

// AwaitPlaced waits until so many of the pods have a node, budget is over, or
// stopped is closed, and returns when each was placed.
func (w *Watch) AwaitPlaced(ctx context.Context, pods []string, want int, budget time.Duration, stopped <-chan struct{}) ([]time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errBudget)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		times, more := w.Placed(pods)
		if len(times) >= want {
			return times, nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errBudget) {
				return times, nil
			}
			return times, fmt.Errorf("waiting for pods: %w", ctx.Err())
		case <-stopped:
			return times, errors.New("waiting for pods: the scheduler ended")
		case <-more:
		}
		// Not at each pod: counting them all must not be what is measured.
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
	}
}
