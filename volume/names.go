package volume

import (
	"crypto/sha256"
	"encoding/hex"
)

// labelValueMax is the longest label value that the API server accepts, in
// bytes (apimachinery, validation.LabelValueMaxLength).
const labelValueMax = 63

// NodeLabelValue is the value of LabelNode for a node: the node's name, or for
// a name over 63 bytes its first 52, a dash and 10 hex digits of its sha256.
// manifests/ holds the same rule in CEL; change both together.
func NodeLabelValue(node string) string {
	if len(node) <= labelValueMax {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return node[:52] + "-" + hex.EncodeToString(sum[:])[:10]
}

// PVName is the name of the PersistentVolume provisioned for the claim with
// this UID, which is also its CreateVolume name: the same claim can never get
// two volumes (external-provisioner, makeVolumeName).
func PVName(claimUID string) string { return "pvc-" + claimUID }

// EphemeralClaimName is the name of the claim of a generic ephemeral volume
// (KEP-1698; component-helpers/storage/ephemeral).
func EphemeralClaimName(pod, podVolume string) string { return pod + "-" + podVolume }

// InlineHandle is the volume handle of a CSI inline volume, which has no
// PersistentVolume (kubelet, csi_mounter.go).
func InlineHandle(podUID, podVolume string) string {
	return "csi-" + hexSum(podUID+podVolume)
}

// AttachmentName is the name of the VolumeAttachment of a volume on a node
// (kubelet, csi_attacher.go).
func AttachmentName(handle, driver, node string) string {
	return "csi-" + hexSum(handle+driver+node)
}

// UniqueName is the name of a volume in Node.status.volumesInUse and
// volumesAttached.
func UniqueName(driver, handle string) string {
	return "kubernetes.io/csi/" + driver + "^" + handle
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
