package provision

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/inflight"
	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/controller/internal/slow"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// Driver is the part of csi.ControllerClient that provisioning calls.
type Driver interface {
	CreateVolume(context.Context, *csi.CreateVolumeRequest, ...grpc.CallOption) (*csi.CreateVolumeResponse, error)
	DeleteVolume(context.Context, *csi.DeleteVolumeRequest, ...grpc.CallOption) (*csi.DeleteVolumeResponse, error)
}

// Capabilities tells what the driver can do; csiclient.Client is one.
type Capabilities interface {
	ControllerHas(context.Context, csi.ControllerServiceCapability_RPC_Type) (bool, error)
}

// Key names a claim in the queue. The UID makes a claim that was deleted and
// made anew two entries, so that neither waits for the other.
type Key struct {
	types.NamespacedName
	UID types.UID
}

// Reconciler brings claims to their PersistentVolumes. Make one with New.
type Reconciler struct {
	scope        scope.Scope
	client       client.Client
	live         client.Reader
	events       notes.Recorder
	driver       Driver
	capabilities Capabilities
	records      Records
	inflight     *inflight.Set
	refused      *slow.Holds

	callTimeout   time.Duration
	defaultFSType string
}

// pass is what the phases of one reconciliation know and hand on.
type pass struct {
	key Key
	// claim and class are nil if there is none; claim is replaced by the live
	// one in confirm.
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
	// record is meaningful if recorded; fresh says that this pass wrote the
	// first record, so that no CreateVolume can have been called.
	record   Record
	recorded bool
	fresh    bool
	// created is the driver's answer, from create on.
	created *csi.Volume
}

// step is the end of a phase.
type step struct {
	// done ends the pass.
	done bool
	// again ends the pass and brings the claim back after the pause.
	again time.Duration
}

func next() step                        { return step{} }
func end() step                         { return step{done: true} }
func endFor(pause time.Duration) step   { return step{done: true, again: pause} }
func (s step) result() reconcile.Result { return reconcile.Result{RequeueAfter: s.again} }

// soon brings a claim back at once, through the queue.
const soon = time.Millisecond

// Reconcile brings one claim as far as it can. It is level based: it reads
// everything anew and does the same after a restart, a lost event or a
// repeated one.
func (r *Reconciler) Reconcile(ctx context.Context, key Key) (reconcile.Result, error) {
	p := &pass{key: key}
	if err := r.look(ctx, p); err != nil {
		return reconcile.Result{}, err
	}
	// From before CreateVolume until the PersistentVolume is acknowledged, or
	// the pass gives up for now, capacity is not published.
	release := r.inflight.Begin()
	defer release()
	for _, phase := range []func(context.Context, *pass) (step, error){
		r.eligible,
		r.begin,
		r.confirm,
		r.create,
		r.publish,
		r.finish,
	} {
		s, err := phase(ctx, p)
		if err != nil || s.done {
			return s.result(), err
		}
	}
	return reconcile.Result{}, nil
}

// look reads what the phases start from: record, claim and class.
func (r *Reconciler) look(ctx context.Context, p *pass) error {
	var err error
	if p.record, p.recorded, err = r.records.Get(p.key.UID); err != nil {
		return err
	}
	claim := &corev1.PersistentVolumeClaim{}
	err = r.client.Get(ctx, p.key.NamespacedName, claim)
	if apierrors.IsNotFound(err) && p.recorded {
		// A cache of labelled claims may lack one that exists. To take it for gone
		// would undo what it waits for.
		err = r.live.Get(ctx, p.key.NamespacedName, claim)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading the claim: %w", err)
	case claim.UID != p.key.UID:
		return nil
	}
	p.claim = claim
	name := storagehelpers.GetPersistentVolumeClaimClass(claim)
	if name == "" {
		return nil
	}
	class := &storagev1.StorageClass{}
	switch err := r.client.Get(ctx, types.NamespacedName{Name: name}, class); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading the claim's StorageClass %s: %w", name, err)
	}
	p.class = class
	return nil
}

// pvName is the name of the claim's PersistentVolume.
func (p *pass) pvName() types.NamespacedName {
	return types.NamespacedName{Name: volume.PVName(string(p.key.UID))}
}

// call bounds a call to the driver.
func (r *Reconciler) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.callTimeout)
}
