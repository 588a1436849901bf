package binder

import (
	"context"
	"encoding/json"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/volume"
)

// undoTimeout bounds the undoing, which goes on after the pod's own context ended.
const undoTimeout = 10 * time.Second

// Undo gives back the volumes that this attempt reserved, so that a pod that has
// to go elsewhere is not tied to them. The precondition is the version that was
// written: once the PV controller has begun to bind, its hand is on the volume
// and the binding goes on. A claim's selected node is never taken back: a
// provisioner may be at work on it.
//
// A volume that another pod has assumed meanwhile, for the same claim, stays
// reserved: that pod is on its way to it.
func (a *Attempt) Undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	for _, b := range a.plan.Binds {
		if !a.written.mine[b.Volume] || a.cache.AssumedByAnother(b.Volume, string(a.pod.UID)) {
			continue
		}
		patch, err := undoPatch(a.written.Volumes[b.Volume])
		if err != nil {
			logger.Error(err, "could not write the patch that gives a volume back", "pv", b.Volume)
			continue
		}
		pv, err := a.client.CoreV1().PersistentVolumes().Patch(ctx, b.Volume, types.MergePatchType, patch, metav1.PatchOptions{})
		switch {
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			logger.V(4).Info("volume went on without the pod", "pv", b.Volume, "pvc", b.Claim)
		case err != nil:
			logger.Error(err, "could not give volume back", "pv", b.Volume, "pvc", b.Claim)
		default:
			a.cache.WroteVolume(pv)
			logger.V(2).Info("gave volume back", "pv", b.Volume, "pvc", b.Claim)
		}
	}
}

// undoPatch takes claimRef off the very version that was written, and the
// annotation that came with it.
func undoPatch(version string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": version, "annotations": map[string]any{volume.AnnBoundByController: nil}},
		"spec":     map[string]any{"claimRef": nil},
	})
}
