package cluster

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/volume"
)

// release takes back every selection of a node that does not exist any more,
// so that the claim can be placed anew: nobody else would, and its pod would
// pend for ever.
func (r *Reconciler) release(ctx context.Context, s *sight) error {
	var failed error
	for _, c := range s.claims {
		if !abandoned(c, s.exists, s.made) {
			continue
		}
		if err := r.releaseOne(ctx, c); err != nil {
			failed = errors.Join(failed, fmt.Errorf("claim %s: %w", c.name, err))
		}
	}
	return failed
}

// releaseOne asks the API server first: the cache may not know a new node, or
// the claim's PersistentVolume. A claim that changed since is left alone; its
// event brings it back.
func (r *Reconciler) releaseOne(ctx context.Context, c claim) error {
	for _, o := range []struct {
		object client.Object
		name   string
		what   string
	}{
		{&corev1.Node{}, c.selected, "the selected node"},
		{&corev1.PersistentVolume{}, volume.PVName(string(c.uid)), "a PersistentVolume of the claim"},
	} {
		err := r.live.Get(ctx, types.NamespacedName{Name: o.name}, o.object)
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("asking for %s: %w", o.what, err)
		}
	}
	changed := c.object.DeepCopy()
	delete(changed.Annotations, volume.AnnSelectedNode)
	err := r.client.Patch(ctx, changed, client.MergeFromWithOptions(c.object, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("removing the selected node: %w", err)
	}
	notes.Warning(r.events, c.object, reasonReleased, actionRelease, fmt.Sprintf(
		"node %s was selected for the claim and does not exist any more; another node is chosen", c.selected))
	klog.FromContext(ctx).V(2).Info("took back the selection of a node that is gone", "pvc", klog.KObj(c.object), "node", c.selected)
	return nil
}
