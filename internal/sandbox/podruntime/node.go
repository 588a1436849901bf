package podruntime

import (
	"context"
	"encoding/json"
	"fmt"
	goruntime "runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/volume"
)

// The kubelet's defaults (KubeletConfiguration.nodeLeaseDurationSeconds, and a
// quarter of it).
const (
	leaseSeconds  = 40
	leaseInterval = 10 * time.Second
)

// address is where the machine, every node and every pod is.
const address = "127.0.0.1"

// registerNode makes the node's object, or says anew that an existing one is
// ready. Without the lease the node controller takes it as lost.
func (r *Runtime) registerNode(ctx context.Context) error {
	node := r.node()
	_, err := r.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("registering node %s: %w", r.NodeName, err)
	}
	raw, err := json.Marshal(map[string]any{"status": node.Status})
	if err != nil {
		return fmt.Errorf("encoding the status of node %s: %w", r.NodeName, err)
	}
	if _, err := r.Client.CoreV1().Nodes().Patch(ctx, r.NodeName, types.StrategicMergePatchType, raw, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("writing the status of node %s: %w", r.NodeName, err)
	}
	return nil
}

// node is the node's object. Its resources are generous: nothing enforces them.
func (r *Runtime) node() *corev1.Node {
	resources := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("8"),
		corev1.ResourceMemory:           resource.MustParse("16Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("64Gi"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	now := metav1.Now()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason, Message: message,
			LastHeartbeatTime: now, LastTransitionTime: now,
		}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: r.NodeName,
			Labels: map[string]string{
				volume.LabelHostname:   r.NodeName,
				volume.LabelZone:       r.Zone,
				corev1.LabelOSStable:   goruntime.GOOS,
				corev1.LabelArchStable: goruntime.GOARCH,
			},
		},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: address},
				{Type: corev1.NodeHostName, Address: r.NodeName},
			},
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: goruntime.GOOS, Architecture: goruntime.GOARCH,
				KubeletVersion: "berth-sandbox", ContainerRuntimeVersion: "berth-sandbox://",
			},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "PodRuntimeReady", "the pod runtime of berth-sandbox runs"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "NotMeasured", "berth-sandbox does not measure memory"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "NotMeasured", "berth-sandbox does not measure disks"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "NotMeasured", "berth-sandbox does not measure processes"),
			},
		},
	}
}

// keepLease renews the node's lease until ctx ends.
func (r *Runtime) keepLease(ctx context.Context) {
	logger := klog.FromContext(ctx)
	owner := func(l *coordinationv1.Lease) error {
		if len(l.OwnerReferences) > 0 {
			return nil
		}
		node, err := r.Client.CoreV1().Nodes().Get(ctx, r.NodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading node %s: %w", r.NodeName, err)
		}
		l.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		}}
		return nil
	}
	failed := func() {
		if err := r.registerNode(ctx); err != nil && ctx.Err() == nil {
			logger.Error(err, "keeping the node registered failed", "node", r.NodeName)
		}
	}
	lease.NewController(clock.RealClock{}, r.Client, r.NodeName, leaseSeconds, failed,
		leaseInterval, r.NodeName, corev1.NamespaceNodeLease, owner).Run(ctx)
}
