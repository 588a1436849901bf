package reclaim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// Driver is the part of csi.ControllerClient that reclaiming calls.
type Driver interface {
	DeleteVolume(context.Context, *csi.DeleteVolumeRequest, ...grpc.CallOption) (*csi.DeleteVolumeResponse, error)
}

// Reconciler deletes released volumes. Make one with New.
type Reconciler struct {
	scope       scope.Scope
	client      client.Client
	live        client.Reader
	events      notes.Recorder
	driver      Driver
	callTimeout time.Duration
}

// Reconcile brings one PersistentVolume as far as it can. Every step may be
// repeated: after a crash the same steps run again from the first.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	pv := &corev1.PersistentVolume{}
	if err := r.client.Get(ctx, key.NamespacedName, pv); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	action := decide(r.scope, pv)
	klog.FromContext(ctx).V(4).Info("judged volume", "step", action)
	switch action {
	case Protect:
		return reconcile.Result{}, r.setFinalizers(ctx, pv, append(slices.Clone(pv.Finalizers), volume.FinalizerProvisioner))
	case Unprotect:
		return reconcile.Result{}, r.unprotect(ctx, pv)
	case Delete:
		return reconcile.Result{}, r.delete(ctx, pv.Name, pv.UID)
	case Nothing:
	}
	return reconcile.Result{}, nil
}

// delete deletes the volume, the object and the finalizer, in this order. An
// object that went first would leave a volume that nobody knows.
func (r *Reconciler) delete(ctx context.Context, name string, uid types.UID) error {
	pv, err := r.confirm(ctx, name, uid)
	if err != nil || pv == nil {
		return err
	}
	callCtx, cancel := context.WithTimeout(ctx, r.callTimeout)
	defer cancel()
	handle := pv.Spec.CSI.VolumeHandle
	if _, err := r.driver.DeleteVolume(callCtx, &csi.DeleteVolumeRequest{VolumeId: handle}); err != nil {
		notes.Warning(r.events, pv, reasonFailed, actionDelete, "deleting the volume: "+notes.Message(err))
		return fmt.Errorf("calling DeleteVolume: %w", err)
	}
	if pv.DeletionTimestamp == nil {
		err := r.client.Delete(ctx, pv, client.Preconditions{UID: &pv.UID})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the PersistentVolume: %w", err)
		}
	}
	if err := r.release(ctx, pv); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("deleted volume", "volumeID", handle)
	return nil
}

// release removes the finalizer of an object that was just deleted. Kubernetes
// removes its own at the same moment, so conflicts are the rule here.
func (r *Reconciler) release(ctx context.Context, pv *corev1.PersistentVolume) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now := &corev1.PersistentVolume{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(pv), now); err != nil {
			return client.IgnoreNotFound(err)
		}
		if now.UID != pv.UID {
			return nil
		}
		return r.unprotect(ctx, now)
	})
}

// confirm judges the live PersistentVolume and its live claim. It returns nil
// where nothing is to be deleted after all.
func (r *Reconciler) confirm(ctx context.Context, name string, uid types.UID) (*corev1.PersistentVolume, error) {
	pv := &corev1.PersistentVolume{}
	if err := r.live.Get(ctx, types.NamespacedName{Name: name}, pv); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if pv.UID != uid || decide(r.scope, pv) != Delete {
		// The change that the cache has not seen yet brings the object back.
		return nil, nil
	}
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return pv, nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	switch err := r.live.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, claim); {
	case apierrors.IsNotFound(err):
		claim = nil
	case err != nil:
		return nil, fmt.Errorf("asking for the live claim: %w", err)
	}
	if stillNamed(pv, claim) {
		return nil, fmt.Errorf("PersistentVolume is %s, but claim %s still names it", pv.Status.Phase, klog.KObj(claim))
	}
	return pv, nil
}

// unprotect removes the finalizer; no error if object or finalizer are gone.
func (r *Reconciler) unprotect(ctx context.Context, pv *corev1.PersistentVolume) error {
	rest := slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == volume.FinalizerProvisioner })
	if len(rest) == len(pv.Finalizers) {
		return nil
	}
	return client.IgnoreNotFound(r.setFinalizers(ctx, pv, rest))
}

// setFinalizers replaces the finalizers. The patch carries the
// resourceVersion: a list is replaced whole, and another writer's finalizer
// must not be lost or come back.
func (r *Reconciler) setFinalizers(ctx context.Context, pv *corev1.PersistentVolume, finalizers []string) error {
	changed := pv.DeepCopy()
	changed.Finalizers = finalizers
	patch := client.MergeFromWithOptions(pv, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("changing the finalizers: %w", err)
	}
	return nil
}
