package story

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

const appLabel = "app"

func (t *teller) podKind() kindOf[*corev1.Pod] {
	return kindOf[*corev1.Pod]{t.client.CoreV1().RESTClient(), "pods", namespace, "", &corev1.Pod{}}
}

func (t *teller) claimKind() kindOf[*corev1.PersistentVolumeClaim] {
	return kindOf[*corev1.PersistentVolumeClaim]{t.client.CoreV1().RESTClient(), "persistentvolumeclaims", namespace, "", &corev1.PersistentVolumeClaim{}}
}

func (t *teller) volumeKind() kindOf[*corev1.PersistentVolume] {
	return kindOf[*corev1.PersistentVolume]{t.client.CoreV1().RESTClient(), "persistentvolumes", "", "", &corev1.PersistentVolume{}}
}

func (t *teller) nodeKind() kindOf[*corev1.Node] {
	return kindOf[*corev1.Node]{t.client.CoreV1().RESTClient(), "nodes", "", "", &corev1.Node{}}
}

func (t *teller) csiNodeKind() kindOf[*storagev1.CSINode] {
	return kindOf[*storagev1.CSINode]{t.client.StorageV1().RESTClient(), "csinodes", "", "", &storagev1.CSINode{}}
}

func (t *teller) capacityKind() kindOf[*storagev1.CSIStorageCapacity] {
	return kindOf[*storagev1.CSIStorageCapacity]{t.client.StorageV1().RESTClient(), "csistoragecapacities", sandbox.Namespace, "", &storagev1.CSIStorageCapacity{}}
}

// script is what a pod of the set does: it writes its words once, notes each of
// its starts, and tells again and again how large it sees its volume.
const script = `
trap 'exit 0' TERM
[ -s /data/words ] || echo "$HOSTNAME wrote this at $(date +%s.%N)" > /data/words
echo "$POD_UID" >> /data/starts
sync
while true; do
  echo "size $(df --output=size -B1 /data | tail -n 1)"
  sleep 0.2
done
`

// storageClass is the story's class. Its filesystem is xfs, since growing a
// mounted ext4 needs CAP_SYS_RESOURCE (Linux, fs/ext4/ioctl.c), which even root
// may lack in a container or a virtual machine of somebody else's.
func storageClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: class},
		Provisioner:          volume.DriverName,
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: ptr.To(true),
		Parameters:           map[string]string{volume.ParameterFSType: "xfs"},
		AllowedTopologies: []corev1.TopologySelectorTerm{{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: volume.LabelZone, Values: []string{zone}}},
		}},
	}
}

// set is the StatefulSet of the story.
func set() *appsv1.StatefulSet {
	labels := map[string]string{appLabel: setName}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: setName, Namespace: namespace},
		Spec: appsv1.StatefulSetSpec{
			Replicas:            ptr.To[int32](replicas),
			PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector:            &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       podSpec(),
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim("data", claimSize)},
		},
	}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		SchedulerName:                 scheduler,
		TerminationGracePeriodSeconds: ptr.To[int64](5),
		Containers: []corev1.Container{{
			Name: "main", Image: "none", Command: []string{"bash", "-c", script},
			Env: []corev1.EnvVar{{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
			}}},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
		}},
	}
}

func claim(name string, size int64) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(class),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *quantity(size)},
			},
		},
	}
}

func quantity(bytes int64) *resource.Quantity {
	return resource.NewQuantity(bytes, resource.BinarySI)
}
