package apply

import (
	"context"
	"fmt"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/nodeagent/plan"
)

// capabilityFor is how the volume is to be used. fsGroup goes to drivers with
// VOLUME_MOUNT_GROUP.
func capabilityFor(ctx context.Context, d Driver, w *plan.Wanted, fsGroup *int64) (*csi.VolumeCapability, error) {
	multiWriter, err := d.NodeHas(ctx, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if err != nil {
		return nil, err
	}
	mode, err := accessMode(w.AccessMode, multiWriter)
	if err != nil {
		return nil, err
	}
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if w.Block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return c, nil
	}
	mount := &csi.VolumeCapability_MountVolume{FsType: w.FSType, MountFlags: w.MountOptions}
	if fsGroup != nil {
		byGroup, err := d.NodeHas(ctx, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
		if err != nil {
			return nil, err
		}
		if byGroup {
			mount.VolumeMountGroup = strconv.FormatInt(*fsGroup, 10)
		}
	}
	c.AccessType = &csi.VolumeCapability_Mount{Mount: mount}
	return c, nil
}

// accessMode maps Kubernetes' access modes to CSI's as the kubelet does
// (csi_client.go, asSingleNodeMultiWriterCapableCSIAccessModeV1 and its pair).
func accessMode(mode string, multiWriter bool) (csi.VolumeCapability_AccessMode_Mode, error) {
	switch corev1.PersistentVolumeAccessMode(mode) {
	case corev1.ReadWriteOnce, "":
		if multiWriter {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil
		}
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	case corev1.ReadWriteOncePod:
		if multiWriter {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil
		}
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	case corev1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil
	case corev1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil
	default:
		return 0, fmt.Errorf("access mode %q is not known", mode)
	}
}

// firstFSGroup is the group that staging is told: that of the first pod.
func firstFSGroup(w *plan.Wanted) *int64 {
	if len(w.Pods) == 0 {
		return nil
	}
	return w.Pods[0].FSGroup
}

// secret reads what ref names, afresh for every call, so that a rotation is seen.
func (r *Runner) secret(ctx context.Context, ref plan.SecretRef) (map[string]string, error) {
	if ref == (plan.SecretRef{}) {
		return nil, nil
	}
	s, err := r.cfg.Secrets.Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	values := make(map[string]string, len(s.Data))
	for k, v := range s.Data {
		values[k] = string(v)
	}
	return values, nil
}
