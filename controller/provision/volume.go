package provision

import (
	"fmt"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// identityAttribute is external-provisioner's key in volumeAttributes for who
// provisioned the volume.
const identityAttribute = "storage.kubernetes.io/csiProvisionerIdentity"

// volumeInput is everything that the PersistentVolume is made of.
type volumeInput struct {
	scope scope.Scope
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
	// request is what was asked, created what the driver answered.
	request *csi.CreateVolumeRequest
	created *csi.Volume
}

// sizeOf is the size of a created volume, in bytes: what the driver said, or
// what was asked where it said nothing. A volume smaller than asked is an error.
func sizeOf(request *csi.CreateVolumeRequest, created *csi.Volume) (int64, error) {
	asked, got := request.GetCapacityRange().GetRequiredBytes(), created.GetCapacityBytes()
	switch {
	case got == 0:
		return asked, nil
	case got < asked:
		return 0, fmt.Errorf("the driver made a volume of %s, %s were asked",
			volume.FormatBytes(got), volume.FormatBytes(asked))
	default:
		return got, nil
	}
}

// buildVolume makes the PersistentVolume of a created volume. Equal inputs give
// equal objects.
func buildVolume(in volumeInput) (*corev1.PersistentVolume, error) {
	size, err := sizeOf(in.request, in.created)
	if err != nil {
		return nil, err
	}
	policy := corev1.PersistentVolumeReclaimDelete
	if in.class.ReclaimPolicy != nil {
		policy = *in.class.ReclaimPolicy
	}
	mode := corev1.PersistentVolumeFilesystem
	if in.claim.Spec.VolumeMode != nil {
		mode = *in.claim.Spec.VolumeMode
	}
	attributes := maps.Clone(in.created.GetVolumeContext())
	if attributes == nil {
		attributes = make(map[string]string, 1)
	}
	attributes[identityAttribute] = in.scope.Identity()
	return &corev1.PersistentVolume{
		ObjectMeta: metaOf(in, policy),
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			AccessModes:                   in.claim.Spec.AccessModes,
			ClaimRef:                      referenceTo(in.claim),
			PersistentVolumeReclaimPolicy: policy,
			StorageClassName:              storagehelpers.GetPersistentVolumeClaimClass(in.claim),
			MountOptions:                  in.class.MountOptions,
			VolumeMode:                    &mode,
			NodeAffinity:                  affinityOf(topologiesOf(in.created)),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver:           in.scope.Driver,
				VolumeHandle:     in.created.GetVolumeId(),
				FSType:           fsTypeOf(in.request),
				VolumeAttributes: attributes,
			}},
		},
	}, nil
}

// metaOf makes name, label, annotations and finalizer. The finalizer holds the
// object until its volume is deleted, so only a volume that is to be deleted
// with it carries one (KEP-2644, HonorPVReclaimPolicy).
func metaOf(in volumeInput, policy corev1.PersistentVolumeReclaimPolicy) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Name:   in.request.GetName(),
		Labels: map[string]string{volume.LabelNode: volume.NodeLabelValue(in.scope.Node)},
		Annotations: map[string]string{
			volume.AnnProvisionedBy: in.scope.Driver,
			// Always set: empty tells a later deleter that no secret is needed,
			// and not to look for one in a class that may have changed.
			volume.AnnDeletionSecretName:      "",
			volume.AnnDeletionSecretNamespace: "",
		},
	}
	for from, to := range map[string]string{
		volume.ContextPool:       volume.AnnotationPool,
		volume.ContextAllocation: volume.AnnotationAllocation,
	} {
		if v := in.created.GetVolumeContext()[from]; v != "" {
			meta.Annotations[to] = v
		}
	}
	if policy == corev1.PersistentVolumeReclaimDelete {
		meta.Finalizers = []string{volume.FinalizerProvisioner}
	}
	return meta
}

// referenceTo names the claim with its UID: the PV controller then binds this
// very claim, and no other that comes to have the name.
func referenceTo(claim *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim",
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
		ResourceVersion: claim.ResourceVersion,
	}
}

func topologiesOf(created *csi.Volume) []volume.Topology {
	out := make([]volume.Topology, 0, len(created.GetAccessibleTopology()))
	for _, t := range created.GetAccessibleTopology() {
		out = append(out, t.GetSegments())
	}
	return out
}

// fsTypeOf is the filesystem that the request asked for; empty for a block
// volume.
func fsTypeOf(request *csi.CreateVolumeRequest) string {
	for _, c := range request.GetVolumeCapabilities() {
		if m := c.GetMount(); m != nil {
			return m.GetFsType()
		}
	}
	return ""
}
