package extender

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// leaseSeconds is for a Lease that does not say how long it lasts (kube-scheduler's
// default).
const leaseSeconds = 15

// FollowLease tells active, at each change until ctx ends, whether the kube-scheduler on
// this host is to call: it holds the Lease of its leader election, or nobody does, for
// then none runs. kube-scheduler's identity is its host's name, "_" and a UUID
// (kubernetes, cmd/kube-scheduler/app/options/options.go); in a pod all containers have
// one host name.
func FollowLease(ctx context.Context, client kubernetes.Interface, c clock.WithTicker, namespace, name, hostname string, active func(bool)) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}))
	changed := make(chan struct{}, 1)
	note := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	informer := factory.Coordination().V1().Leases().Informer()
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: note, UpdateFunc: func(_, obj any) { note(obj) }, DeleteFunc: note,
	})
	if err != nil {
		return fmt.Errorf("watching Lease %s/%s: %w", namespace, name, err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	for ctx.Err() == nil {
		obj, _, err := informer.GetStore().GetByKey(namespace + "/" + name)
		if err != nil {
			return fmt.Errorf("reading Lease %s/%s: %w", namespace, name, err)
		}
		lease, _ := obj.(*coordinationv1.Lease)
		obey(ctx, lease, hostname, c, changed, active)
	}
	return nil
}

// obey tells what one state of the Lease means, nil for none, until it changes. The
// Lease of another host counts for as long as it lasts, from when it was seen.
func obey(ctx context.Context, lease *coordinationv1.Lease, hostname string, c clock.WithTicker, changed <-chan struct{}, active func(bool)) {
	if lease == nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" ||
		strings.HasPrefix(*lease.Spec.HolderIdentity, hostname+"_") {
		active(true)
		select {
		case <-changed:
		case <-ctx.Done():
		}
		return
	}
	lasts := c.NewTimer(time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, leaseSeconds)) * time.Second)
	defer lasts.Stop()
	active(false)
	over := lasts.C()
	for {
		select {
		case <-over:
			active(true)
			over = nil
		case <-changed:
			return
		case <-ctx.Done():
			return
		}
	}
}
