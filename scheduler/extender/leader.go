package extender

import (
	"context"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// FollowLease tells active whether the kube-scheduler on this host holds the Lease of
// its leader election, at each change, until ctx ends. kube-scheduler's identity is
// its host's name, "_" and a UUID (kubernetes, cmd/kube-scheduler/app/options/options.go); in
// a pod all containers have one host name.
func FollowLease(ctx context.Context, client kubernetes.Interface, namespace, name, hostname string, active func(bool)) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}))
	judge := func(obj any) {
		lease, ok := obj.(*coordinationv1.Lease)
		active(ok && lease.Spec.HolderIdentity != nil && strings.HasPrefix(*lease.Spec.HolderIdentity, hostname+"_"))
	}
	_, err := factory.Coordination().V1().Leases().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: judge, UpdateFunc: func(_, obj any) { judge(obj) }, DeleteFunc: func(any) { active(false) },
	})
	if err != nil {
		return fmt.Errorf("watching Lease %s/%s: %w", namespace, name, err)
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}
