package plugin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"

	"github.com/berth-storage/berth/scheduler/cache"
)

// nodes are a profile's, as its scheduler sees them in a cycle. It implements
// binder.Nodes.
type nodes struct{ handle fwk.Handle }

// CSINode asks the handle and not the informer, because a cluster autoscaler puts
// its simulated nodes there.
func (n nodes) CSINode(name string) (*storagev1.CSINode, error) {
	manager := n.handle.SharedCSIManager()
	if manager == nil {
		return nil, nil
	}
	csiNode, err := manager.CSINodes().Get(name)
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		return nil, nil
	default:
		return nil, fmt.Errorf("reading CSINode %s: %w", name, err)
	}
	return csiNode, nil
}

// Informed implements binder.Nodes.
func (n nodes) Informed() bool {
	_, ok := n.handle.SharedCSIManager().(*nodevolumelimits.DefaultCSIManager)
	return ok
}

// Tenants implements binder.Nodes with the cycle's snapshot.
func (n nodes) Tenants(node string) (cache.Tenants, bool) {
	info, err := n.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return cache.Tenants{}, false
	}
	return tenantsOf(info), true
}

func tenantsOf(info fwk.NodeInfo) cache.Tenants {
	return cache.Tenants{Node: info.Node().Name, Generation: info.GetGeneration(), Pods: func(yield func(*corev1.Pod) bool) {
		for _, pi := range info.GetPods() {
			if !yield(pi.GetPod()) {
				return
			}
		}
	}}
}
