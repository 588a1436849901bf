package rig

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/volume"
)

const (
	// Namespace holds the pods and claims.
	Namespace = "bench"
	// driverName is that of a driver which nobody knows: neither scheduler has
	// more to say of it than the API does.
	driverName = "bench.csi.example.com"
	className  = "bench"
	// claimSize is what each claim asks for.
	claimSize = "1Gi"
)

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func serviceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: Namespace}}
}

func node(name string) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("128Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
}

func csiNode(name string) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driverName, NodeID: name, TopologyKeys: []string{corev1.LabelHostname}},
		}},
	}
}

func csiDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: new(bool), StorageCapacity: new(true)},
	}
}

func storageClass(w Workload) *storagev1.StorageClass {
	provisioner := driverName
	if w == Static {
		provisioner = "kubernetes.io/no-provisioner"
	}
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: className}, Provisioner: provisioner,
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

func capacity(node string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Name: node, Namespace: Namespace},
		StorageClassName: className,
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}},
		Capacity:         new(resource.MustParse("100Gi")),
	}
}

func localVolume(node string, i int) *corev1.PersistentVolume {
	pv := volumeOn(node, fmt.Sprintf("%s-%d", node, i))
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: fmt.Sprintf("/mnt/%d", i)}}
	return pv
}

// madeVolume is the volume that a provisioner makes for a claim.
func madeVolume(claim *corev1.PersistentVolumeClaim, node string) *corev1.PersistentVolume {
	pv := volumeOn(node, "pvc-"+string(claim.UID))
	pv.Annotations = map[string]string{volume.AnnProvisionedBy: driverName}
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: pv.Name,
	}}
	pv.Spec.ClaimRef = refTo(claim)
	return pv
}

func refTo(claim *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}
}

func volumeOn(node, name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(claimSize)},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			// Nothing deletes or recycles what the benchmark leaves.
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              className,
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}

// nodeOf is the node that a volume of the benchmark lies on.
func nodeOf(pv *corev1.PersistentVolume) string {
	return pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
}

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: new(className),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(claimSize)}},
		},
	}
}

func pod(name, scheduler string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler, AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{
				Name: "pause", Image: "registry.k8s.io/pause:3.10",
				Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}}},
		},
	}
}
