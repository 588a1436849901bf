package capacity

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/inflight"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// Source tells what the node's pools can hold.
type Source interface {
	// Capacity returns the capacity for a class with these parameters, the
	// reserved ones included. A pool that does not exist here has none: that is
	// an answer, not an error. After an error what is published stays.
	Capacity(ctx context.Context, classParameters map[string]string) (volume.PoolCapacity, error)
	// Changed receives a value after some answer of Capacity changed. Values may
	// be merged, if one arrives after the last change. It is always the same
	// channel and is never closed.
	Changed() <-chan struct{}
}

// Reconciler publishes capacity. Make one with New.
type Reconciler struct {
	scope     scope.Scope
	namespace string
	client    client.Client
	live      client.Reader
	source    Source
	inflight  *inflight.Set
	maxWait   time.Duration
}

// Reconcile publishes the capacity of the whole node; there is one key.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	node, segment, err := r.node(ctx)
	if err != nil || node == nil {
		return reconcile.Result{}, err
	}
	var classes storagev1.StorageClassList
	if err := r.client.List(ctx, &classes); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing StorageClasses: %w", err)
	}
	wanted, kept, unread := r.read(ctx, node, segment, classes.Items)
	if err := r.waitForVolumes(ctx); err != nil {
		return reconcile.Result{}, err
	}
	var published storagev1.CSIStorageCapacityList
	err = r.client.List(ctx, &published, client.InNamespace(r.namespace), client.MatchingLabels(r.scope.CapacityLabels()))
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("listing the published capacity: %w", err)
	}
	return reconcile.Result{}, errors.Join(unread, r.write(ctx, plan(published.Items, wanted, kept)))
}

// node returns the Node and its topology segment, or nil while it has none:
// then the driver was never registered here, or its labels are being
// rewritten, and what is published stays.
func (r *Reconciler) node(ctx context.Context) (*corev1.Node, string, error) {
	node := &corev1.Node{}
	err := r.client.Get(ctx, types.NamespacedName{Name: r.scope.Node}, node)
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading node %s: %w", r.scope.Node, err)
	}
	segment := node.Labels[volume.TopologyNodeKey]
	if segment == "" || node.DeletionTimestamp != nil {
		return nil, "", nil
	}
	return node, segment, nil
}

// read asks for the capacity of every class of the driver. kept are the objects
// of the classes that gave no answer.
func (r *Reconciler) read(ctx context.Context, node *corev1.Node, segment string, classes []storagev1.StorageClass) (wanted []*storagev1.CSIStorageCapacity, kept map[string]bool, unread error) {
	kept = make(map[string]bool)
	for _, class := range classes {
		if class.Provisioner != r.scope.Driver {
			continue
		}
		c, err := r.source.Capacity(ctx, class.Parameters)
		if err != nil {
			kept[objectName(r.scope.Node, class.Name)] = true
			unread = errors.Join(unread, fmt.Errorf("reading the capacity for class %s: %w", class.Name, err))
			continue
		}
		wanted = append(wanted, buildObject(r.scope, r.namespace, node, segment, class.Name, c))
	}
	return wanted, kept, unread
}

// waitForVolumes waits for the provisionings that the readings may contain. The
// wait has a bound: a volume counted twice for a while is better than freed
// space that nobody sees because one call hangs.
func (r *Reconciler) waitForVolumes(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, r.maxWait)
	defer cancel()
	err := r.inflight.Wait(bounded)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("a provisioning takes long, capacity is published without waiting for it", "node", r.scope.Node)
		return nil
	}
	return err
}

// write performs the plan. Removals come first: an object that is replaced has
// to go before it can be made anew.
func (r *Reconciler) write(ctx context.Context, w writes) error {
	for _, o := range w.remove {
		if err := r.client.Delete(ctx, o, client.Preconditions{UID: &o.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing the capacity of class %s: %w", o.StorageClassName, err)
		}
	}
	for _, o := range w.create {
		err := r.client.Create(ctx, o.DeepCopy())
		if apierrors.IsAlreadyExists(err) {
			err = r.overwrite(ctx, o)
		}
		if err != nil {
			return fmt.Errorf("publishing the capacity of class %s: %w", o.StorageClassName, err)
		}
	}
	for _, o := range w.update {
		err := r.client.Update(ctx, o.DeepCopy())
		if apierrors.IsConflict(err) {
			err = r.overwrite(ctx, o)
		}
		if err != nil {
			return fmt.Errorf("publishing the capacity of class %s: %w", o.StorageClassName, err)
		}
	}
	return nil
}

// overwrite writes over an object that the cache does not know yet: mostly our
// own last write. No other program writes these objects.
func (r *Reconciler) overwrite(ctx context.Context, want *storagev1.CSIStorageCapacity) error {
	have := &storagev1.CSIStorageCapacity{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return err
	}
	if !sameKey(have, want) {
		return fmt.Errorf("object %s is of class %s", have.Name, have.StorageClassName)
	}
	if same(have, want) {
		return nil
	}
	return r.client.Update(ctx, merged(have, want))
}
