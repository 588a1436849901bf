package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/volume"
)

// newPlaced makes the reconciler of pods that were put on a node by hand.
func newPlaced(r *Reconciler) *placed {
	return &placed{
		client: r.client, live: r.live, events: r.events, clock: r.clock, retell: r.retell,
		courses: make(map[types.NamespacedName]map[types.UID]*course),
	}
}

// setupPlaced starts it with the manager, when it leads.
func setupPlaced(mgr manager.Manager, r *Reconciler) error {
	p := newPlaced(r)
	err := builder.ControllerManagedBy(mgr).
		Named("placed").
		For(&corev1.Pod{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(p.podsOf), builder.WithPredicates(claimComesBack())).
		// A node's labels are its topology.
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(p.podsOn), builder.WithPredicates(onChange(labelsChanged))).
		// What any waiting pod may have waited for: a volume, a class, or a driver.
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(p.pods), builder.WithPredicates(volumeBecomesFree())).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(p.pods)).
		Watches(&storagev1.CSINode{}, handler.EnqueueRequestsFromMapFunc(p.pods), builder.WithPredicates(onChange(driversChanged))).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 1,
			LogConstructor: func(req *reconcile.Request) logr.Logger {
				logger := mgr.GetLogger().WithValues("controller", "placed")
				if req != nil {
					logger = logger.WithValues("pod", klog.KRef(req.Namespace, req.Name))
				}
				return logger
			},
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](200*time.Millisecond, time.Minute),
		}).
		Complete(p)
	if err != nil {
		return fmt.Errorf("setting up the binding for pods without scheduler: %w", err)
	}
	return nil
}

// pods are all that wait on a node.
func (r *placed) pods(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.requests(ctx, func(*corev1.Pod) bool { return true })
}

// podsOn are those of a node.
func (r *placed) podsOn(ctx context.Context, node client.Object) []reconcile.Request {
	return r.requests(ctx, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == node.GetName() })
}

func labelsChanged(before, after client.Object) bool {
	return !maps.Equal(before.GetLabels(), after.GetLabels())
}

// podsOf are those that use a claim.
func (r *placed) podsOf(ctx context.Context, pvc client.Object) []reconcile.Request {
	return r.requests(ctx, func(pod *corev1.Pod) bool {
		return pod.Namespace == pvc.GetNamespace() && slices.Contains(claimNames(pod), pvc.GetName())
	})
}

func (r *placed) requests(ctx context.Context, wanted func(*corev1.Pod) bool) []reconcile.Request {
	var list corev1.PodList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		// The cache has all pods or none; it lists them when it has them.
		klog.FromContext(ctx).Error(err, "cannot list the pods that wait on a node")
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}

// claimComesBack lets new claims pass, those whose node was given back, and those
// that get their class late.
func claimComesBack() predicate.Predicate {
	return predicate.Funcs{
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			if e.ObjectOld.GetAnnotations()[volume.AnnSelectedNode] != "" && e.ObjectNew.GetAnnotations()[volume.AnnSelectedNode] == "" {
				return true
			}
			before, ok := e.ObjectOld.(*corev1.PersistentVolumeClaim)
			after, okay := e.ObjectNew.(*corev1.PersistentVolumeClaim)
			return ok && okay && storagehelpers.GetPersistentVolumeClaimClass(before) != storagehelpers.GetPersistentVolumeClaimClass(after)
		},
	}
}

// volumeBecomesFree lets volumes pass that a claim could take now and could not
// before.
func volumeBecomesFree() predicate.Predicate {
	free := func(o client.Object) bool {
		pv, ok := o.(*corev1.PersistentVolume)
		return ok && pv.Status.Phase == corev1.VolumeAvailable
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return free(e.Object) },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.PersistentVolume)
			after, okay := e.ObjectNew.(*corev1.PersistentVolume)
			return ok && okay && free(after) && (!free(before) || !maps.Equal(before.Labels, after.Labels) || !apiequality.Semantic.DeepEqual(before.Spec, after.Spec))
		},
	}
}
