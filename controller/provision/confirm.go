package provision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/volume"
)

// confirm asks the API server itself whether the claim still wants a volume
// here. A cache may show a claim that has long been served and deleted; a
// volume made for it would never be deleted (external-provisioner#1469). The
// check comes after the record, so that as little time as possible lies
// between it and CreateVolume.
func (r *Reconciler) confirm(ctx context.Context, p *pass) (step, error) {
	if p.record.State == StateUndoing {
		return r.undo(ctx, p)
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := r.live.Get(ctx, p.key.NamespacedName, claim)
	if err != nil && !apierrors.IsNotFound(err) {
		return end(), fmt.Errorf("asking for the live claim: %w", err)
	}
	gone := err != nil || claim.UID != p.key.UID
	switch {
	case !gone && claim.DeletionTimestamp == nil && claim.Spec.VolumeName == "" && r.scope.OwnsClaim(claim):
		p.claim = claim
		if p.class == nil {
			// Without its class the PersistentVolume cannot be made, and with the
			// record the volume must not be forgotten: it is undone, and made anew
			// if the class comes back.
			return r.undo(ctx, p)
		}
		return next(), nil
	case p.fresh:
		// No CreateVolume was called for this record.
		klog.FromContext(ctx).V(4).Info("claim changed before its provisioning")
		return end(), r.records.Drop(p.key.UID)
	default:
		return r.undo(ctx, p)
	}
}

// isVolumeOf reports whether pv is the PersistentVolume of the record's own
// volume: then the provisioning is complete, whatever became of the claim, and
// controller/reclaim answers for the volume.
func (r *Reconciler) isVolumeOf(record Record, pv *corev1.PersistentVolume) bool {
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != r.scope.Driver ||
		pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != record.ClaimUID {
		return false
	}
	if record.VolumeID != "" {
		return pv.Spec.CSI.VolumeHandle == record.VolumeID
	}
	// The id is not known. Names are unique on a node, so a PersistentVolume
	// made for this node can only name the volume of this record.
	return pv.Labels[volume.LabelNode] == volume.NodeLabelValue(r.scope.Node)
}
