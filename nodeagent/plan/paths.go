package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"path"

	"github.com/berth-storage/berth/volume"
)

// The layout is the kubelet's (pkg/volume/csi: csi_attacher.go, csi_mounter.go,
// csi_block.go), so that drivers find what they know, and either can take over
// from the other.

// DataFile is the name of the file beside a mount that says whose it is.
const DataFile = "vol_data.json"

// StagingPath is where a volume is staged: a folder.
func StagingPath(root string, key volume.Key, pv string, block bool) string {
	if block {
		return path.Join(root, "plugins/kubernetes.io/csi/volumeDevices/staging", pv)
	}
	sum := sha256.Sum256([]byte(key.Handle))
	return path.Join(root, "plugins/kubernetes.io/csi", key.Driver, hex.EncodeToString(sum[:]), "globalmount")
}

// TargetPath is where a volume is published for a pod. The driver makes it; its
// parent is made before the call.
func TargetPath(root, podUID, pv string, block bool) string {
	if block {
		return path.Join(root, "plugins/kubernetes.io/csi/volumeDevices/publish", pv, podUID)
	}
	return path.Join(root, "pods", podUID, "volumes/kubernetes.io~csi", pv, "mount")
}
