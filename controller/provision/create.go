package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/volume"
)

// create calls CreateVolume, also where it succeeded before: the call is
// idempotent by name, and its answer is what the PersistentVolume is made of.
func (r *Reconciler) create(ctx context.Context, p *pass) (step, error) {
	created, err := r.callCreate(ctx, p)
	if err != nil {
		return r.createFailed(ctx, p, err)
	}
	p.created = created
	if p.record.State != StateCreated || p.record.VolumeID != p.created.GetVolumeId() {
		p.record = p.record.BecomeCreated(p.created.GetVolumeId())
		if err := r.records.Put(p.record); err != nil {
			return end(), err
		}
	}
	if _, err := sizeOf(p.record.Request, p.created); err != nil {
		notes.Warning(r.events, p.claim, reasonFailed, actionProvision, err.Error())
		return r.undo(ctx, p)
	}
	return next(), nil
}

// callCreate calls CreateVolume with the record's request. The record says
// first that the outcome is open, if it says otherwise.
func (r *Reconciler) callCreate(ctx context.Context, p *pass) (*csi.Volume, error) {
	if p.record.State == StateFailed {
		p.record = p.record.BecomeRestarted()
		if err := r.records.Put(p.record); err != nil {
			return nil, err
		}
	}
	ctx, cancel := r.call(ctx)
	defer cancel()
	response, err := r.driver.CreateVolume(ctx, p.record.Request)
	if err != nil {
		return nil, err
	}
	if response.GetVolume().GetVolumeId() == "" {
		return nil, errors.New("driver answered CreateVolume without a volume id")
	}
	return response.GetVolume(), nil
}

// createFailed acts on what the end of CreateVolume means.
func (r *Reconciler) createFailed(ctx context.Context, p *pass, err error) (step, error) {
	asked := volume.FormatBytes(p.record.Request.GetCapacityRange().GetRequiredBytes())
	said := notes.Message(err)
	outcome := csiclient.OutcomeOf(err)
	if p.record.State == StateCreated && (csiclient.IsExhausted(err) || outcome == csiclient.Stop) {
		// The volume was there and the driver now denies it. Only its deletion
		// makes sure; then the claim begins anew.
		return r.undo(ctx, p)
	}
	if csiclient.IsExhausted(err) {
		return r.reschedule(ctx, p, asked, said)
	}
	switch outcome {
	case csiclient.Stop:
		// Nothing was made and nothing will be, until the request changes.
		what := fingerprint(p.class, p.record.Request)
		if err := r.records.Drop(p.key.UID); err != nil {
			return end(), err
		}
		return r.refuse(p, what, fmt.Sprintf("the driver refuses a volume of %s as asked: %s", asked, said)), nil
	case csiclient.Retry:
		notes.Warning(r.events, p.claim, reasonFailed, actionProvision,
			fmt.Sprintf("the driver could not make a volume of %s: %s", asked, said))
		if p.record.State == StateStarted {
			if err := r.records.Put(p.record.BecomeFailed()); err != nil {
				return end(), err
			}
		}
		return end(), fmt.Errorf("calling CreateVolume: %w", err)
	case csiclient.Done, csiclient.Wait:
		notes.Warning(r.events, p.claim, reasonFailed, actionProvision,
			fmt.Sprintf("the driver has not finished a volume of %s, it is asked again: %s", asked, said))
	}
	return end(), fmt.Errorf("calling CreateVolume: %w", err)
}

// reschedule gives the claim back to the scheduler: there is no room here. The
// record goes first, since nothing was made; a crash in between leaves a claim
// that asks once more and is told the same.
func (r *Reconciler) reschedule(ctx context.Context, p *pass, asked, said string) (step, error) {
	if err := r.records.Drop(p.key.UID); err != nil {
		return end(), err
	}
	claim := p.claim.DeepCopy()
	delete(claim.Annotations, volume.AnnSelectedNode)
	// Only the very claim that was confirmed: a newer one may carry another
	// selection already.
	patch := client.MergeFromWithOptions(p.claim, client.MergeFromWithOptimisticLock{})
	switch err := r.client.Patch(ctx, claim, patch); {
	case apierrors.IsNotFound(err):
		return end(), nil
	case err != nil:
		return end(), fmt.Errorf("removing the selected node: %w", err)
	}
	notes.Warning(r.events, p.claim, reasonFailed, actionReschedule, fmt.Sprintf(
		"node %s has no room for a volume of %s, another node is asked for: %s", r.scope.Node, asked, said))
	klog.FromContext(ctx).V(2).Info("gave claim back to the scheduler", "node", r.scope.Node)
	return end(), nil
}

// publish creates the PersistentVolume.
func (r *Reconciler) publish(ctx context.Context, p *pass) (step, error) {
	pv, err := buildVolume(volumeInput{
		scope: r.scope, claim: p.claim, class: p.class, request: p.record.Request, created: p.created,
	})
	if err != nil {
		return end(), err
	}
	err = r.client.Create(ctx, pv)
	if err == nil {
		return next(), nil
	}
	if !apierrors.IsAlreadyExists(err) {
		notes.Warning(r.events, p.claim, reasonFailed, actionProvision, "creating the PersistentVolume: "+err.Error())
		return end(), fmt.Errorf("creating the PersistentVolume: %w", err)
	}
	existing := &corev1.PersistentVolume{}
	if err := r.live.Get(ctx, p.pvName(), existing); err != nil {
		return end(), fmt.Errorf("reading the PersistentVolume that exists already: %w", err)
	}
	switch {
	case !r.isVolumeOf(p.record, existing):
		// Another node was faster. Its volume is the claim's; this one is not.
		notes.Warning(r.events, p.claim, reasonFailed, actionProvision,
			fmt.Sprintf("PersistentVolume %s exists already and names another volume", existing.Name))
		return r.undo(ctx, p)
	case existing.DeletionTimestamp != nil:
		// The volume goes with it, perhaps now; it has to be made anew.
		if err := r.records.Put(p.record.BecomeRestarted()); err != nil {
			return end(), err
		}
		return end(), fmt.Errorf("PersistentVolume %s is being deleted", existing.Name)
	default:
		return next(), nil
	}
}

// finish drops the record: the PersistentVolume answers for the volume now.
func (r *Reconciler) finish(ctx context.Context, p *pass) (step, error) {
	if err := r.records.Drop(p.key.UID); err != nil {
		return end(), err
	}
	r.refused.Forget(p.key.UID)
	notes.Normal(r.events, p.claim, reasonSucceeded, actionProvision, "provisioned PersistentVolume "+p.pvName().Name)
	klog.FromContext(ctx).V(2).Info("provisioned volume", "pv", klog.KRef("", p.pvName().Name), "volumeID", p.created.GetVolumeId())
	return end(), nil
}
