package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// The cases of a table live side by side in one cluster: each has classes, claims,
// volumes and pools of its own, whose names begin with the case's.

const (
	noProvisioner = "kubernetes.io/no-provisioner"
	ebsPlugin     = "kubernetes.io/aws-ebs"
	ebsZone       = "topology.ebs.csi.aws.com/zone"
)

// caseName is the prefix of the objects of a case.
type caseName string

func nameOf(title string) caseName {
	return caseName(strings.NewReplacer(" ", "-", ",", "").Replace(title) + ".")
}

func (k caseName) class(name, provisioner string, topologies ...string) *storagev1.StorageClass {
	return fakeapi.Class(string(k)+name, provisioner, topologies...)
}

func (k caseName) immediate(name string) *storagev1.StorageClass {
	class := k.class(name, noProvisioner)
	class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	return class
}

func (k caseName) pvc(name, class, size string) *corev1.PersistentVolumeClaim {
	return fakeapi.PVC(string(k)+name, string(k)+class, size)
}

func (k caseName) pv(name, class, size, node string) *corev1.PersistentVolume {
	return fakeapi.PV(string(k)+name, string(k)+class, size, node)
}

// bound are a claim and its volume, bound to each other.
func (k caseName) bound(name, class, node string) []runtime.Object {
	pvc, pv := k.pvc(name, class, "1Gi"), k.pv("pv-"+name, class, "1Gi", node)
	return []runtime.Object{fakeapi.BoundTo(pvc, pv.Name), takenBy(pv, pvc)}
}

// migrated are a claim and its volume of a plugin that a CSI driver took over.
func (k caseName) migrated(name, zone string) []runtime.Object {
	objects := k.bound(name, "local", "")
	pv := objects[1].(*corev1.PersistentVolume)
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-" + string(k) + name}}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: volume.LabelZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
	}}}}
	return objects
}

// capacity is an object of a pool of the case's own; an empty size is not published.
func (k caseName) capacity(class, node, size, maximum string) *storagev1.CSIStorageCapacity {
	o := fakeapi.Capacity(string(k)+class, node, "1Gi", 5)
	o.Annotations[volume.AnnotationPool] = string(k) + node
	o.Capacity = nil
	if size != "" {
		o.Capacity = new(resource.MustParse(size))
	}
	if maximum != "" {
		o.MaximumVolumeSize = new(resource.MustParse(maximum))
	}
	return o
}

func (k caseName) pod(claims ...string) *corev1.Pod {
	pod := fakeapi.Pod(string(k) + "pod")
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, fakeapi.Pod("", string(k)+c).Spec.Volumes...)
	}
	return pod
}

// plain takes the case's prefix off a text.
func (k caseName) plain(s string) string { return strings.ReplaceAll(s, string(k), "") }

func reservedClaimRef(pvc *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID}
}

func takenBy(pv *corev1.PersistentVolume, pvc *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	pv.Spec.ClaimRef, pv.Status.Phase = reservedClaimRef(pvc), corev1.VolumeBound
	return pv
}

func selectedFor(pvc *corev1.PersistentVolumeClaim, node string) *corev1.PersistentVolumeClaim {
	metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnSelectedNode, node)
	return pvc
}

// caseNodes: n1 handles the plugin as CSI, and its zone is another one to the
// driver than to the cluster; n2 has not migrated it, n3 has no CSINode.
func caseNodes() []runtime.Object {
	migrating := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{volume.AnnMigratedPlugins: ebsPlugin}}}
	return []runtime.Object{
		fakeapi.Node("n1", volume.LabelZone, "z1", ebsZone, "z2"), fakeapi.Node("n2", volume.LabelZone, "z1"), fakeapi.Node("n3", volume.LabelZone, "z1"),
		migrating, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, fakeapi.Driver(driverName),
	}
}

// caseRig starts one cluster with the objects of all cases.
func caseRig(t *testing.T, objects ...runtime.Object) *rig {
	t.Helper()
	return newCluster(t, append(caseNodes(), objects...)...).start(t.Context())
}
