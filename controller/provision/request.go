package provision

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/volume"
)

// deprecatedFSType is the parameter that ParameterFSType replaced.
const deprecatedFSType = "fstype"

// requestInput is everything that the request is made of.
type requestInput struct {
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
	// segments are the selected node's, under the driver's topology keys.
	segments volume.Topology
	// multiWriter: the driver has the capability SINGLE_NODE_MULTI_WRITER.
	multiWriter bool
	// defaultFSType is for classes that name no filesystem.
	defaultFSType string
}

// buildRequest makes the CreateVolume request. Equal inputs give equal
// requests. An error names what is wrong with claim or class; it stays until
// one of them changes.
func buildRequest(in requestInput) (*csi.CreateVolumeRequest, error) {
	parameters, fsType, err := splitParameters(in.class.Parameters)
	if err != nil {
		return nil, fmt.Errorf("class %s: %w", in.class.Name, err)
	}
	if fsType == "" {
		fsType = in.defaultFSType
	}
	capabilities, err := volumeCapabilities(in.claim, fsType, in.class.MountOptions, in.multiWriter)
	if err != nil {
		return nil, err
	}
	size := in.claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Sign() <= 0 {
		return nil, fmt.Errorf("spec.resources.requests.storage is %s; ask for at least one byte", size.String())
	}
	request := &csi.CreateVolumeRequest{
		Name:               volume.PVName(string(in.claim.UID)),
		CapacityRange:      &csi.CapacityRange{RequiredBytes: volume.Bytes(size)},
		VolumeCapabilities: capabilities,
		Parameters:         parameters,
	}
	if len(in.segments) > 0 {
		// Strict topology: the scheduler's choice is the only place.
		here := []*csi.Topology{{Segments: maps.Clone(in.segments)}}
		request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: here, Preferred: here}
	}
	return request, nil
}

// splitParameters takes the reserved parameters away and returns the driver's
// own and the filesystem type (external-provisioner,
// removePrefixedParameters). A reserved key that is not understood is an error:
// it would silently do nothing.
func splitParameters(all map[string]string) (own map[string]string, fsType string, err error) {
	own = make(map[string]string, len(all))
	var named []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := all[key]
		switch {
		case key == volume.ParameterFSType || key == deprecatedFSType:
			named = append(named, key)
			fsType = value
		case isSecretParameter(key):
			return nil, "", fmt.Errorf("parameter %s: secrets are not passed to the driver; remove it", key)
		case strings.HasPrefix(key, volume.ReservedParameterPrefix):
			return nil, "", fmt.Errorf("parameter %s is reserved and unknown; remove it or correct its spelling", key)
		default:
			own[key] = value
		}
	}
	if len(named) > 1 {
		return nil, "", fmt.Errorf("parameters %s name the filesystem twice; keep %s", strings.Join(named, " and "), volume.ParameterFSType)
	}
	return own, fsType, nil
}

// isSecretParameter reports a key like csi.storage.k8s.io/provisioner-secret-name.
func isSecretParameter(key string) bool {
	rest, ok := strings.CutPrefix(key, volume.ReservedParameterPrefix)
	return ok && (strings.HasSuffix(rest, "secret-name") || strings.HasSuffix(rest, "secret-namespace"))
}

// volumeCapabilities makes one capability per access mode.
func volumeCapabilities(claim *corev1.PersistentVolumeClaim, fsType string, mountOptions []string, multiWriter bool) ([]*csi.VolumeCapability, error) {
	if len(claim.Spec.AccessModes) == 0 {
		return nil, fmt.Errorf("spec.accessModes is empty; name one, for example %s", corev1.ReadWriteOnce)
	}
	block := isBlock(claim)
	out := make([]*csi.VolumeCapability, 0, len(claim.Spec.AccessModes))
	for _, mode := range claim.Spec.AccessModes {
		access, err := accessMode(mode, multiWriter)
		if err != nil {
			return nil, err
		}
		c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: access}}
		if block {
			c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		} else {
			c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
				FsType: fsType, MountFlags: mountOptions,
			}}
		}
		out = append(out, c)
	}
	return out, nil
}

// accessMode translates an access mode (external-provisioner,
// getVolumeCapabilities). A driver without SINGLE_NODE_MULTI_WRITER knows only
// SINGLE_NODE_WRITER for one node.
func accessMode(mode corev1.PersistentVolumeAccessMode, multiWriter bool) (csi.VolumeCapability_AccessMode_Mode, error) {
	switch mode {
	case corev1.ReadWriteOnce:
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
		return 0, fmt.Errorf("spec.accessModes: %q is unknown", mode)
	}
}

func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
