package volume

import (
	"crypto/sha256"
	"encoding/hex"
)

// labelValueMax is the longest label value that the API server accepts, in
// bytes (apimachinery, validation.LabelValueMaxLength).
const labelValueMax = 63

// NodeLabelValue is the value of LabelNode on a PersistentVolume of a node: the
// node's name, or for a name over 63 bytes its first 52, a dash and 10 hex digits
// of its sha256. Claims have another rule: see ClaimLabelValue.
func NodeLabelValue(node string) string {
	if len(node) <= labelValueMax {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return node[:52] + "-" + hex.EncodeToString(sum[:])[:10]
}

// ClaimLabelValue is the value of LabelNode on the claims for which a node was
// selected: the node's name. For a name over 63 bytes there is none and ok is
// false: the label is then left off, and the node's agent has to watch every
// claim. ClaimLabelPolicy says the same in CEL, which in the API server has no
// hash to shorten a name with (k8s.io/apiserver, pkg/cel/environment/base.go);
// test/e2e/manifests holds the two together.
func ClaimLabelValue(node string) (value string, ok bool) {
	if node == "" || len(node) > labelValueMax {
		return "", false
	}
	return node, true
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
