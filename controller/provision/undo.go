package provision

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/csiclient"
)

// undo ends a record whose volume is not wanted: the claim is gone, bound
// elsewhere or no longer for this node. If the PersistentVolume exists, the
// provisioning was complete and the volume is controller/reclaim's to delete.
// Else the volume is deleted here, and to learn its id CreateVolume is called
// once more where no answer ever came: there is no other way to ask a driver
// what it made.
func (r *Reconciler) undo(ctx context.Context, p *pass) (step, error) {
	if p.record.State != StateUndoing {
		owed, err := r.decideUndo(ctx, p)
		if err != nil {
			return end(), err
		}
		if !owed {
			return r.forget(p)
		}
		if err := r.records.Put(p.record); err != nil {
			return end(), err
		}
	}
	callCtx, cancel := r.call(ctx)
	defer cancel()
	if _, err := r.driver.DeleteVolume(callCtx, &csi.DeleteVolumeRequest{VolumeId: p.record.VolumeID}); err != nil {
		return end(), fmt.Errorf("deleting an unwanted volume: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("deleted unwanted volume", "volumeID", p.record.VolumeID)
	return r.forget(p)
}

// decideUndo finds out whether a volume is to be deleted, and if so brings the
// record to StateUndoing.
func (r *Reconciler) decideUndo(ctx context.Context, p *pass) (owed bool, err error) {
	pv := &corev1.PersistentVolume{}
	err = r.live.Get(ctx, p.pvName(), pv)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("asking for the live PersistentVolume: %w", err)
	}
	exists := err == nil
	if exists && r.isVolumeOf(p.record, pv) {
		return false, nil
	}
	id, made, err := r.learn(ctx, p)
	if err != nil || !made {
		return false, err
	}
	p.record = p.record.BecomeUndoing(id)
	// A driver that is not of one node may have made the volume that the
	// PersistentVolume names.
	return !exists || !r.isVolumeOf(p.record, pv), nil
}

// forget drops the record. The claim may want a volume again by now, and no
// event will say so a second time.
func (r *Reconciler) forget(p *pass) (step, error) {
	if err := r.records.Drop(p.key.UID); err != nil {
		return end(), err
	}
	return endFor(soon), nil
}

// learn returns the id of the record's volume, and whether there is one.
func (r *Reconciler) learn(ctx context.Context, p *pass) (id string, made bool, err error) {
	if p.record.VolumeID != "" {
		return p.record.VolumeID, true, nil
	}
	created, err := r.callCreate(ctx, p)
	switch {
	case err == nil:
		return created.GetVolumeId(), true, nil
	case csiclient.IsExhausted(err) || csiclient.OutcomeOf(err) == csiclient.Stop:
		// The driver looks for the name before it refuses: nothing is there.
		return "", false, nil
	default:
		return "", false, fmt.Errorf("repeating an unfinished CreateVolume in order to undo it: %w", err)
	}
}
