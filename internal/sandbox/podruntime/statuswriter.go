package podruntime

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// lastStatusTimeout bounds the writing of a pod's last status.
const lastStatusTimeout = 10 * time.Second

// writeStatus writes the pod's status whenever it changed, and once more when
// ctx ends and the object still exists: how the pod's processes ended must be
// known before the object goes.
func (w *worker) writeStatus(ctx context.Context) {
	for {
		select {
		case <-w.dirty:
			w.writeOnce(ctx)
		case <-ctx.Done():
			if w.existing.Err() != nil {
				return
			}
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastStatusTimeout)
			defer cancel()
			select {
			case <-w.dirty:
				w.writeOnce(last)
			default:
			}
			return
		}
	}
}

// writeOnce writes the present status, and tries again until it succeeds, the
// object is gone, or ctx ends.
func (w *worker) writeOnce(ctx context.Context) {
	for {
		err := w.patchStatus(ctx)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "writing the pod's status failed")
		}
		if !pause(ctx, retryFirst) {
			w.changed() // for the last writing
			return
		}
	}
}

func (w *worker) patchStatus(ctx context.Context) error {
	w.mu.Lock()
	pod := w.pod
	o := w.state
	o.statuses, o.finished = maps.Clone(o.statuses), maps.Clone(o.finished)
	w.mu.Unlock()
	raw, err := statusPatch(pod.UID, podStatus(pod, o, metav1.Now()))
	if err != nil {
		return err
	}
	updated, err := w.rt.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	// The next status is compared with this one, not with what the watch is yet
	// to bring.
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pod.UID == updated.UID {
		w.pod = withStatus(w.pod, updated.Status)
	}
	return nil
}

func withStatus(pod *corev1.Pod, status corev1.PodStatus) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Status = status
	return pod
}

// statusPatch changes only what this runtime writes: conditions are merged by
// their type. The uid keeps it from a younger pod of the same name.
func statusPatch(uid types.UID, status corev1.PodStatus) ([]byte, error) {
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return nil, fmt.Errorf("encoding the pod's status: %w", err)
	}
	// What a condition no longer says must be named to go away in a merge.
	conditions, _, err := unstructured.NestedSlice(body, "conditions")
	if err != nil {
		return nil, fmt.Errorf("encoding the pod's conditions: %w", err)
	}
	for _, c := range conditions {
		for _, field := range []string{"reason", "message"} {
			if m := c.(map[string]any); m[field] == nil {
				m[field] = nil
			}
		}
	}
	body["conditions"] = conditions
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": body})
	if err != nil {
		return nil, fmt.Errorf("encoding the pod's status: %w", err)
	}
	return raw, nil
}
