package cluster

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/notes"
)

// Reasons and actions of events. A claim without a place says
// ProvisioningFailed, as with external-provisioner.
const (
	reasonFailed   = "ProvisioningFailed"
	reasonAssigned = "NodeAssigned"
	reasonReleased = "NodeGone"
	reasonPlaced   = "BoundWithoutScheduler"

	actionAssign  = "Assign"
	actionRelease = "Reschedule"
	actionPlaced  = "Bind"
)

// Reconciler assigns and releases. Make one with New. It works on one key, one
// round at a time: a decision counts what all others hold.
type Reconciler struct {
	driver string
	client client.Client
	live   client.Reader
	events notes.Recorder
	clock  clock.PassiveClock
	retell time.Duration
	memory *memory
}

// Reconcile makes one round over the cluster.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	s, err := r.look(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.memory.observe(s.claims)
	if err := errors.Join(r.release(ctx, s), r.assign(ctx, s)); err != nil {
		return reconcile.Result{}, err
	}
	if len(r.memory.told) > 0 {
		return reconcile.Result{RequeueAfter: r.retell}, nil
	}
	return reconcile.Result{}, nil
}
