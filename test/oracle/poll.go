package oracle

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/volume"
)

// bindAfter binds the world's pod to a node, with everybody else's part done
// after a while, and returns how long PreBind took. It is for a bubble of
// testing/synctest, where time is exact.
func (r *rig) bindAfter(w *world, node string, after time.Duration) (time.Duration, error) {
	c, pre := r.begin(w.pod)
	if !pre.IsSuccess() {
		return 0, fmt.Errorf("PreFilter: %s", words(pre))
	}
	if s := words(c.filter(r.info(node))...); s != "Success" {
		return 0, fmt.Errorf("node %s: %s", node, s)
	}
	if s := r.binder.Reserve(r.ctx, c.state, w.pod, node); !s.IsSuccess() {
		return 0, fmt.Errorf("reserving: %s", s.Message())
	}
	if _, s := r.binder.PreBindPreFlight(r.ctx, c.state, w.pod, node); s.IsSkip() {
		return 0, nil
	}
	// The scheduler's own copy of the pod, which has its node.
	assumed := w.pod.DeepCopy()
	assumed.Spec.NodeName = node
	began := time.Now()
	timer := time.AfterFunc(after, func() { r.complete(w, node) })
	defer timer.Stop()
	if s := r.binder.PreBind(r.ctx, c.state, assumed, node); !s.IsSuccess() {
		return 0, fmt.Errorf("PreBind: %s", s.Message())
	}
	return time.Since(began), nil
}

// complete does what the PV controller and the provisioners do once the plugin
// has written, and lets the informers see it.
func (r *rig) complete(w *world, node string) {
	r.mu.Lock()
	written := slices.Clone(r.written)
	r.mu.Unlock()
	bound := map[string]string{}
	for _, pv := range w.volumes {
		if pv.Spec.ClaimRef != nil {
			bound[pv.Spec.ClaimRef.Name] = pv.Name
		}
	}
	for _, o := range written {
		if pv, ok := o.(*corev1.PersistentVolume); ok {
			pv = pv.DeepCopy()
			pv.Status.Phase = corev1.VolumeBound
			r.observe(w, r.put(pv))
			bound[pv.Spec.ClaimRef.Name] = pv.Name
		}
	}
	for _, ref := range refsOf(w.pod) {
		r.mu.Lock()
		o := r.objects["persistentvolumeclaims "+ref.name]
		r.mu.Unlock()
		pvc := o.DeepCopyObject().(*corev1.PersistentVolumeClaim)
		if isBound(pvc) {
			continue
		}
		if pvc.Annotations[volume.AnnSelectedNode] == node {
			pvc.Spec.VolumeName = "made-for-" + pvc.Name
			r.observe(w, r.put(madeFor(pvc)))
		} else {
			pvc.Spec.VolumeName = bound[pvc.Name]
		}
		metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnBindCompleted, "yes")
		pvc.Status.Phase = corev1.ClaimBound
		r.observe(w, r.put(pvc))
	}
}

func madeFor(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: c.Spec.VolumeName, UID: types.UID("uid-" + c.Spec.VolumeName)},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: className(c), Capacity: c.Spec.Resources.Requests,
			ClaimRef:               &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: trackedDriver, VolumeHandle: c.Spec.VolumeName}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

// wait is how long PreBind takes where the binding is complete after a while.
func (m *model) wait(after time.Duration) time.Duration {
	if m.has[plugin.DifferenceNoPoll] {
		return after
	}
	return after.Truncate(time.Second) + time.Second
}

// waits are how long both sides take to bind on the node.
func waits(ctx context.Context, w *world, s side, node string, after time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := newRig(ctx, w, s.make)
	if err != nil {
		return 0, err
	}
	return r.bindAfter(w, node, after)
}
