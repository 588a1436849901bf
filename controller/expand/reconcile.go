package expand

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/controller/internal/slow"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/volume"
)

// Driver is the part of csi.ControllerClient that expanding calls.
type Driver interface {
	ControllerExpandVolume(context.Context, *csi.ControllerExpandVolumeRequest, ...grpc.CallOption) (*csi.ControllerExpandVolumeResponse, error)
}

// Reconciler grows volumes. Make one with New.
type Reconciler struct {
	scope       scope.Scope
	client      client.Client
	live        client.Reader
	events      notes.Recorder
	driver      Driver
	clock       clock.PassiveClock
	refused     *slow.Holds
	callTimeout time.Duration

	mu sync.Mutex
	// failed is, guarded by mu, the size of each claim's last call that failed
	// for good. It is memory only: after a restart the call counts as unfinished
	// and is made once more.
	failed map[types.UID]int64
}

// Reconcile brings one claim as far as it can.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := r.client.Get(ctx, key.NamespacedName, claim)
	if apierrors.IsNotFound(err) {
		// A cache of labelled claims lacks those without the label: a claim that was
		// restored from a backup has its volume and no selected node. Its
		// PersistentVolume brought it here.
		err = r.live.Get(ctx, key.NamespacedName, claim)
	}
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	pv, err := r.volumeOf(ctx, claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	plan := decide(question{scope: r.scope, claim: claim, pv: pv, failed: r.failedSize(claim.UID)})
	switch plan.Action {
	case Grow:
		return r.grow(ctx, attempt{
			claim: claim, pv: pv, plan: plan,
			what: fmt.Sprintf("%d of %s", plan.Size, claim.Spec.Resources.Requests.Storage()),
		})
	case Tidy:
		r.forget(claim.UID)
		return reconcile.Result{}, r.tidy(ctx, pv)
	case Nothing:
	}
	return reconcile.Result{}, nil
}

// volumeOf returns the claim's PersistentVolume, or nil if it is not of this
// scope.
func (r *Reconciler) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	if claim.Spec.VolumeName == "" {
		return nil, nil
	}
	pv := &corev1.PersistentVolume{}
	err := r.client.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, pv)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the claim's PersistentVolume: %w", err)
	}
	return pv, nil
}

// attempt is one try of one size.
type attempt struct {
	claim *corev1.PersistentVolumeClaim
	pv    *corev1.PersistentVolume
	plan  Plan
	// what tells this try from others, for what the driver refused: the same
	// size is another try after the user asked for something else.
	what string
}

// grow notes the size, calls the driver and acts on the outcome.
func (r *Reconciler) grow(ctx context.Context, a attempt) (reconcile.Result, error) {
	if left := r.refused.Left(a.claim.UID, a.what); a.plan.Slow && left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	size := a.plan.Size
	if !isInProgress(a.claim, size) {
		// Durable before the call. The resourceVersion makes it the check that
		// the decision was not made on a stale claim.
		if err := r.patchStatus(ctx, a.claim, func(c *corev1.PersistentVolumeClaim) {
			becomeInProgress(c, size, r.clock.Now())
		}); err != nil {
			return reconcile.Result{}, err
		}
		notes.Normal(r.events, a.claim, reasonResizing, actionExpand, fmt.Sprintf(
			"growing PersistentVolume %s to %s", a.pv.Name, volume.FormatBytes(size)))
	}
	callCtx, cancel := context.WithTimeout(ctx, r.callTimeout)
	defer cancel()
	response, err := r.driver.ControllerExpandVolume(callCtx, requestFor(a.claim, a.pv, size))
	if err != nil {
		return r.growFailed(ctx, a, err)
	}
	got := response.GetCapacityBytes()
	if got == 0 {
		got = size
	}
	if got < size {
		err := fmt.Errorf("the driver grew the volume to %s, %s were asked", volume.FormatBytes(got), volume.FormatBytes(size))
		notes.Warning(r.events, a.claim, reasonFailed, actionExpand, err.Error())
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.grown(ctx, a, got, response.GetNodeExpansionRequired())
}

// requestFor makes the request. Every capability of a PersistentVolume has one
// access type, so the first access mode stands for all.
func requestFor(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, size int64) *csi.ControllerExpandVolumeRequest {
	capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{
		Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	}}
	if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
			FsType: pv.Spec.CSI.FSType, MountFlags: pv.Spec.MountOptions,
		}}
	}
	return &csi.ControllerExpandVolumeRequest{
		VolumeId:         pv.Spec.CSI.VolumeHandle,
		CapacityRange:    &csi.CapacityRange{RequiredBytes: size},
		VolumeCapability: capability,
	}
}

// grown writes the result: the PersistentVolume first, so that a node that sees
// the claim's state sees the size too.
func (r *Reconciler) grown(ctx context.Context, a attempt, got int64, nodeStep bool) error {
	var before *resource.Quantity
	if nodeStep {
		before = a.claim.Status.Capacity.Storage()
	}
	base := a.pv.DeepCopy()
	if growVolume(a.pv, got, before) {
		if err := r.client.Patch(ctx, a.pv, locked(base)); err != nil {
			return fmt.Errorf("raising the PersistentVolume's capacity: %w", err)
		}
	}
	baseClaim := a.claim.DeepCopy()
	if noteNodeStep(a.claim, nodeStep) {
		if err := r.client.Patch(ctx, a.claim, locked(baseClaim)); err != nil {
			return fmt.Errorf("noting whether the node has to act: %w", err)
		}
	}
	err := r.patchStatus(ctx, a.claim, func(c *corev1.PersistentVolumeClaim) {
		if nodeStep {
			becomeNodePending(c, a.plan.Size, r.clock.Now())
		} else {
			becomeGrown(c, got, r.clock.Now())
		}
	})
	if err != nil {
		return err
	}
	if !nodeStep {
		r.forget(a.claim.UID)
		notes.Normal(r.events, a.claim, reasonSuccessful, actionExpand, "the volume has "+volume.FormatBytes(got))
		return nil
	}
	r.setFailed(a.claim.UID, 0)
	if a.plan.Slow {
		// If the node refuses this size again, both rest.
		r.refused.Hold(a.claim.UID, a.what)
	}
	notes.Normal(r.events, a.claim, reasonNodeStep, actionExpand, "the volume has grown; the file system grows on the node")
	return nil
}

// growFailed acts on what the end of the call means. What was asked stays in
// the claim's status, so that it is counted and finished.
func (r *Reconciler) growFailed(ctx context.Context, a attempt, err error) (reconcile.Result, error) {
	uid, size := a.claim.UID, a.plan.Size
	said := notes.Message(err)
	note := fmt.Sprintf("growing to %s: %s", volume.FormatBytes(size), said)
	outcome := csiclient.OutcomeOf(err)
	switch {
	case outcome == csiclient.Stop || csiclient.IsNotFound(err):
		r.setFailed(uid, size)
		marked := r.patchStatus(ctx, a.claim, func(c *corev1.PersistentVolumeClaim) {
			becomeInfeasible(c, size, said, r.clock.Now())
		})
		if marked != nil {
			return reconcile.Result{}, marked
		}
		notes.Warning(r.events, a.claim, reasonFailed, actionExpand, note)
		return reconcile.Result{RequeueAfter: r.refused.Hold(uid, a.what)}, nil
	case outcome == csiclient.Retry || csiclient.IsExhausted(err):
		// A driver that says that it has no room has not grown the volume. The
		// user may now ask for less. (external-resizer keeps to the size here, and
		// the claim with it.)
		r.setFailed(uid, size)
	default:
		r.setFailed(uid, 0)
	}
	notes.Warning(r.events, a.claim, reasonFailed, actionExpand, note)
	return reconcile.Result{}, fmt.Errorf("calling ControllerExpandVolume: %w", err)
}

// tidy takes the note of the old capacity off the PersistentVolume.
func (r *Reconciler) tidy(ctx context.Context, pv *corev1.PersistentVolume) error {
	base := pv.DeepCopy()
	delete(pv.Annotations, volume.AnnPreResizeCapacity)
	if err := r.client.Patch(ctx, pv, locked(base)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("removing the note of the old capacity: %w", err))
	}
	klog.FromContext(ctx).V(2).Info("growth is complete", "pv", klog.KObj(pv))
	return nil
}

// patchStatus writes a change of the claim's status and leaves the written
// claim in claim.
func (r *Reconciler) patchStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim)) error {
	base := claim.DeepCopy()
	change(claim)
	if err := r.client.Status().Patch(ctx, claim, locked(base)); err != nil {
		return fmt.Errorf("writing the claim's status: %w", err)
	}
	return nil
}

// locked is a merge patch that carries the resourceVersion: status and lists
// are replaced whole, and a decision made on a stale object must not count.
func locked(base client.Object) client.Patch {
	return client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
}

func (r *Reconciler) failedSize(uid types.UID) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed[uid]
}

func (r *Reconciler) setFailed(uid types.UID, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if size == 0 {
		delete(r.failed, uid)
		return
	}
	r.failed[uid] = size
}

func (r *Reconciler) forget(uid types.UID) {
	r.setFailed(uid, 0)
	r.refused.Forget(uid)
}
