package podruntime

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// isCSI reports whether a volume comes from the node agent: a claim, a generic
// ephemeral claim, or inline CSI.
func isCSI(v corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil
}

func hasCSI(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, isCSI)
}

func isLocal(v corev1.Volume) bool {
	return v.EmptyDir != nil || v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// unsupported says what of the pod this runtime cannot do, in words for its
// owner; "" when it can do all.
func unsupported(pod *corev1.Pod, csi bool) string {
	var found []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case isCSI(v) && !csi:
			found = append(found, fmt.Sprintf("volume %q needs a node agent, and this node has none", v.Name))
		case !isCSI(v) && !isLocal(v):
			found = append(found, fmt.Sprintf("volume %q is of a kind that berth-sandbox does not have; it has persistentVolumeClaim, ephemeral, csi, emptyDir, configMap, secret, downwardAPI and projected", v.Name))
		case v.Projected != nil:
			if slices.ContainsFunc(v.Projected.Sources, isUnknownSource) {
				found = append(found, fmt.Sprintf("volume %q projects a kind of source that berth-sandbox does not have", v.Name))
			}
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil {
			found = append(found, fmt.Sprintf("init container %q has a restartPolicy of its own; berth-sandbox has no sidecars", c.Name))
		}
	}
	for _, c := range allContainers(pod) {
		for _, m := range c.VolumeMounts {
			if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
				found = append(found, fmt.Sprintf("container %q mounts %q with propagation %s; berth-sandbox has only None", c.Name, m.Name, *m.MountPropagation))
			}
		}
	}
	return strings.Join(found, "; ")
}

func isUnknownSource(s corev1.VolumeProjection) bool {
	return s.Secret == nil && s.ConfigMap == nil && s.DownwardAPI == nil && s.ServiceAccountToken == nil
}

// allContainers are the init containers, then the others.
func allContainers(pod *corev1.Pod) []corev1.Container {
	all := make([]corev1.Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	return append(append(all, pod.Spec.InitContainers...), pod.Spec.Containers...)
}
