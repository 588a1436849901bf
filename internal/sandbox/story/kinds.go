package story

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/internal/sandbox"
)

func (t *teller) podKind() kindOf[*corev1.Pod] {
	return kindOf[*corev1.Pod]{t.client.CoreV1().RESTClient(), "pods", namespace, &corev1.Pod{}, t.wait}
}

func (t *teller) claimKind() kindOf[*corev1.PersistentVolumeClaim] {
	return kindOf[*corev1.PersistentVolumeClaim]{t.client.CoreV1().RESTClient(), "persistentvolumeclaims", namespace, &corev1.PersistentVolumeClaim{}, t.wait}
}

func (t *teller) volumeKind() kindOf[*corev1.PersistentVolume] {
	return kindOf[*corev1.PersistentVolume]{t.client.CoreV1().RESTClient(), "persistentvolumes", "", &corev1.PersistentVolume{}, t.wait}
}

func (t *teller) nodeKind() kindOf[*corev1.Node] {
	return kindOf[*corev1.Node]{t.client.CoreV1().RESTClient(), "nodes", "", &corev1.Node{}, t.wait}
}

func (t *teller) eventKind() kindOf[*corev1.Event] {
	return kindOf[*corev1.Event]{t.client.CoreV1().RESTClient(), "events", namespace, &corev1.Event{}, t.wait}
}

func (t *teller) csiNodeKind() kindOf[*storagev1.CSINode] {
	return kindOf[*storagev1.CSINode]{t.client.StorageV1().RESTClient(), "csinodes", "", &storagev1.CSINode{}, t.wait}
}

func (t *teller) capacityKind() kindOf[*storagev1.CSIStorageCapacity] {
	return kindOf[*storagev1.CSIStorageCapacity]{t.client.StorageV1().RESTClient(), "csistoragecapacities", sandbox.Namespace, &storagev1.CSIStorageCapacity{}, t.wait}
}
