package desired

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

// pvcProtection keeps a deleted claim until no pod uses it. A claim that is
// being deleted without it may go at any moment.
const pvcProtection = "kubernetes.io/pvc-protection"

// resolver follows one volume of a pod to what CSI is to be told. Its checks
// are the kubelet's (desired_state_of_world_populator.go, operation_generator.go).
type resolver struct {
	pod    *corev1.Pod
	source *corev1.Volume
	l      lookups
}

// resolved is the end of the way, or the reason for having stopped.
type resolved struct {
	PodVolume
	// unread says that the reason is an object that has not been read yet.
	unread bool
	// wanted is the volume, without pods; use is this pod's.
	wanted *plan.Wanted
	use    plan.PodUse
}

func (f *resolved) refuse(r volume.Reason, detail string) {
	f.PodVolume = PodVolume{Name: f.Name, Problem: &volume.Refusal{Reason: r, Detail: detail}}
}

// relevant reports whether the volume is one of CSI, or may be. A volume that
// no container uses is ignored, as by the kubelet.
func (r resolver) relevant() bool {
	mounted, device := r.usedAs()
	kind := r.source.VolumeSource
	return (mounted || device) && (kind.PersistentVolumeClaim != nil || kind.Ephemeral != nil || kind.CSI != nil)
}

func (r resolver) usedAs() (mounted, device bool) {
	look := func(mounts []corev1.VolumeMount, devices []corev1.VolumeDevice) {
		mounted = mounted || slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == r.source.Name })
		device = device || slices.ContainsFunc(devices, func(d corev1.VolumeDevice) bool { return d.Name == r.source.Name })
	}
	for _, c := range r.pod.Spec.InitContainers {
		look(c.VolumeMounts, c.VolumeDevices)
	}
	for _, c := range r.pod.Spec.Containers {
		look(c.VolumeMounts, c.VolumeDevices)
	}
	for _, c := range r.pod.Spec.EphemeralContainers {
		look(c.VolumeMounts, c.VolumeDevices)
	}
	return mounted, device
}

func (r resolver) resolve() resolved {
	f := resolved{PodVolume: PodVolume{Name: r.source.Name}}
	if r.source.CSI != nil {
		f.refuse(volume.ReasonNotCSI, "inline volume of driver "+r.source.CSI.Driver)
		return f
	}
	claim := r.claim(&f)
	if claim == nil {
		return f
	}
	pv := r.volume(claim, &f)
	if pv == nil {
		return f
	}
	r.complete(claim, pv, &f)
	return f
}

// claim finds the claim and checks it; nil if it cannot be used.
func (r resolver) claim(f *resolved) *corev1.PersistentVolumeClaim {
	var name string
	if c := r.source.PersistentVolumeClaim; c != nil {
		name = c.ClaimName
	} else {
		name = volume.EphemeralClaimName(r.pod.Name, r.source.Name)
	}
	full := "claim " + r.pod.Namespace + "/" + name
	claim, read := r.l.Claim(r.pod.Namespace, name)
	switch {
	case !read:
		f.unread = true
		f.refuse(volume.ReasonPending, full+" is being read")
	case claim == nil:
		f.refuse(volume.ReasonClaimMissing, full)
	case r.source.Ephemeral != nil && ephemeral.VolumeIsForPod(r.pod, claim) != nil:
		f.refuse(volume.ReasonClaimNotOwned, full)
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, pvcProtection):
		f.refuse(volume.ReasonClaimDeleting, full)
	case claim.Status.Phase == corev1.ClaimLost:
		f.refuse(volume.ReasonClaimLost, full)
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		f.refuse(volume.ReasonClaimUnbound, full)
	default:
		return claim
	}
	return nil
}

// volume finds the claim's PersistentVolume and checks it; nil if it cannot be
// used.
func (r resolver) volume(claim *corev1.PersistentVolumeClaim, f *resolved) *corev1.PersistentVolume {
	full := "persistentvolume " + claim.Spec.VolumeName
	pv, read := r.l.PersistentVolume(claim.Spec.VolumeName)
	mounted, device := r.usedAs()
	node := r.l.Node()
	switch {
	case !read:
		f.unread = true
		f.refuse(volume.ReasonPending, full+" is being read")
	case pv == nil:
		f.refuse(volume.ReasonVolumeMissing, full)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		f.refuse(volume.ReasonVolumeTaken, full)
	case pv.Spec.CSI == nil:
		f.refuse(volume.ReasonNotCSI, full)
	case isBlock(pv) && mounted:
		f.refuse(volume.ReasonVolumeMode, full+" is a block device, the pod lists it in volumeMounts")
	case !isBlock(pv) && device:
		f.refuse(volume.ReasonVolumeMode, full+" has a filesystem, the pod lists it in volumeDevices")
	case node == nil:
		f.refuse(volume.ReasonPending, "the Node object does not exist")
	case volumehelpers.CheckNodeAffinity(pv, node.Labels) != nil:
		f.refuse(volume.ReasonNodeAffinity, full)
	default:
		return pv
	}
	return nil
}

func isBlock(pv *corev1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// complete fills in everything that staging and publication need.
func (r resolver) complete(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, f *resolved) {
	source := pv.Spec.CSI
	driver := r.l.CSIDriver(source.Driver)
	w := &plan.Wanted{
		Key:            volume.Key{Driver: source.Driver, Handle: source.VolumeHandle},
		PV:             pv.Name,
		PVC:            plan.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)},
		Block:          isBlock(pv),
		FSType:         source.FSType,
		MountOptions:   pv.Spec.MountOptions,
		Context:        source.VolumeAttributes,
		NeedsAttach:    driver == nil || driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired,
		StageSecret:    secretRef(source.NodeStageSecretRef),
		PublishSecret:  secretRef(source.NodePublishSecretRef),
		ExpandSecret:   secretRef(source.NodeExpandSecretRef),
		ChownToFSGroup: chowns(driver, pv),
		GrowTo:         growTo(claim, pv),
	}
	if len(pv.Spec.AccessModes) > 0 {
		w.AccessMode = string(pv.Spec.AccessModes[0])
	}
	readOnly := source.ReadOnly || r.source.PersistentVolumeClaim != nil && r.source.PersistentVolumeClaim.ReadOnly
	f.PodVolume = PodVolume{Name: r.source.Name, Key: w.Key, PV: pv.Name, Block: w.Block, ReadOnly: readOnly}
	f.wanted = w
	f.use = plan.PodUse{
		Pod:      plan.Pod{Namespace: r.pod.Namespace, Name: r.pod.Name, UID: string(r.pod.UID)},
		Name:     r.source.Name,
		ReadOnly: readOnly,
		PodInfo:  podInfo(driver, r.pod),
	}
	if c := r.pod.Spec.SecurityContext; c != nil && c.FSGroup != nil {
		f.use.FSGroup = c.FSGroup
		f.use.FSGroupIfRootDiffers = c.FSGroupChangePolicy != nil && *c.FSGroupChangePolicy == corev1.FSGroupChangeOnRootMismatch
	}
}

func secretRef(ref *corev1.SecretReference) plan.SecretRef {
	if ref == nil {
		return plan.SecretRef{}
	}
	return plan.SecretRef{Namespace: ref.Namespace, Name: ref.Name}
}

// chowns applies CSIDriver.spec.fsGroupPolicy; the default is
// ReadWriteOnceWithFSType (csi_mounter.go, supportsFSGroup).
func chowns(driver *storagev1.CSIDriver, pv *corev1.PersistentVolume) bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if driver != nil && driver.Spec.FSGroupPolicy != nil {
		policy = *driver.Spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.FileFSGroupPolicy:
		return true
	case storagev1.NoneFSGroupPolicy:
		return false
	default:
		return pv.Spec.CSI.FSType != "" && slices.ContainsFunc(pv.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
			return m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod
		})
	}
}

// growTo is the size that the claim waits for on the node: what the controller
// allocated, once it says that the node's part is due (KEP-1790).
func growTo(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) int64 {
	switch claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
	default:
		return 0
	}
	if size, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok {
		return volume.Bytes(size)
	}
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	return volume.Bytes(size)
}

// podInfo is the volume context that CSIDriver.spec.podInfoOnMount adds.
func podInfo(driver *storagev1.CSIDriver, pod *corev1.Pod) map[string]string {
	if driver == nil || driver.Spec.PodInfoOnMount == nil || !*driver.Spec.PodInfoOnMount {
		return nil
	}
	return map[string]string{
		"csi.storage.k8s.io/pod.name":            pod.Name,
		"csi.storage.k8s.io/pod.namespace":       pod.Namespace,
		"csi.storage.k8s.io/pod.uid":             string(pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(false),
	}
}

// String is for logs.
func (v PodVolume) String() string {
	if v.Problem != nil {
		return fmt.Sprintf("volume %q: %s", v.Name, v.Problem)
	}
	return fmt.Sprintf("volume %q: %s", v.Name, v.Key)
}
