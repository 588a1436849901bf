package story

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

// volumeOfPod is a pod's volume, in the API and on the machine.
type volumeOfPod struct {
	claim *corev1.PersistentVolumeClaim
	pv    *corev1.PersistentVolume
	loop  host.Loop
	mount host.MountPoint
}

// volumeOf finds the volume of a pod's only claim, and holds the API against
// the machine: the PersistentVolume is bound both ways, belongs to the pod's node
// and is a loop device on that node's pool, mounted for that pod.
func (t *teller) volumeOf(ctx context.Context, pod *corev1.Pod) (volumeOfPod, error) {
	var v volumeOfPod
	node, err := t.cluster.Node(pod.Spec.NodeName)
	if err != nil {
		return v, err
	}
	name := claimOf(pod)
	if v.claim, err = t.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return v, fmt.Errorf("reading claim %s: %w", name, err)
	}
	if v.claim.Status.Phase != corev1.ClaimBound {
		return v, fmt.Errorf("claim %s is %s, want Bound", name, v.claim.Status.Phase)
	}
	if v.pv, err = t.client.CoreV1().PersistentVolumes().Get(ctx, v.claim.Spec.VolumeName, metav1.GetOptions{}); err != nil {
		return v, fmt.Errorf("reading volume %s: %w", v.claim.Spec.VolumeName, err)
	}
	if err := checkVolume(v, node); err != nil {
		return v, err
	}
	id, err := volume.ParseID(v.pv.Spec.CSI.VolumeHandle)
	if err != nil {
		return v, err
	}
	if v.loop, err = t.loopOf(node, id); err != nil {
		return v, err
	}
	v.mount, err = t.mountOf(node, pod, v.loop)
	return v, err
}

func claimOf(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

func checkVolume(v volumeOfPod, node sandbox.Node) error {
	pv := v.pv
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != volume.DriverName {
		return fmt.Errorf("volume %s is not one of %s", pv.Name, volume.DriverName)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != v.claim.UID {
		return fmt.Errorf("volume %s is not bound to claim %s", pv.Name, v.claim.Name)
	}
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return fmt.Errorf("volume %s has no node affinity", pv.Name)
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == volume.TopologyNodeKey && len(e.Values) == 1 && e.Values[0] == node.Name {
				return nil
			}
		}
	}
	return fmt.Errorf("volume %s: its node affinity does not name %s", pv.Name, node.Name)
}

// loopOf finds the loop device of a volume: its image lies on the node's pool
// and carries the volume's name.
func (t *teller) loopOf(node sandbox.Node, id volume.ID) (host.Loop, error) {
	loops, err := t.machine.LoopsUnder(node.Pool())
	if err != nil {
		return host.Loop{}, err
	}
	for _, l := range loops {
		if strings.Contains(l.File, id.Name) && !l.FileGone {
			return l, nil
		}
	}
	return host.Loop{}, fmt.Errorf("no loop device below %s is volume %s: %v", node.Pool(), id, loops)
}

// mountOf finds where a loop device is mounted for a pod.
func (t *teller) mountOf(node sandbox.Node, pod *corev1.Pod, loop host.Loop) (host.MountPoint, error) {
	mounts, err := t.machine.MountsUnder(node.Root())
	if err != nil {
		return host.MountPoint{}, err
	}
	for _, m := range mounts {
		if m.Source == loop.Device && strings.Contains(m.Target, string(pod.UID)) {
			return m, nil
		}
	}
	return host.MountPoint{}, fmt.Errorf("%s is not mounted for pod %s below %s: %v", loop.Device, pod.Name, node.Root(), mounts)
}

// inside is the path of a file as the pod sees it, in its own mount namespace.
func inside(pod *corev1.Pod, path string) (string, error) {
	for _, s := range pod.Status.ContainerStatuses {
		// podruntime writes berth-sandbox://<pid>@<start time>.
		_, id, _ := strings.Cut(s.ContainerID, "://")
		pid, _, ok := strings.Cut(id, "@")
		if _, err := strconv.Atoi(pid); ok && err == nil {
			return filepath.Join("/proc", pid, "root", path), nil
		}
	}
	return "", fmt.Errorf("pod %s has no running container", pod.Name)
}

// filePause is the time between two looks at a file that a pod is about to
// write.
const filePause = 50 * time.Millisecond

// read reads a file of the pod's volume, from inside the pod. A pod that only
// just started may still be about to write it.
func (t *teller) read(pod *corev1.Pod, name string) (string, error) {
	path, err := inside(pod, "/data/"+name)
	if err != nil {
		return "", err
	}
	deadline := time.NewTimer(stepTimeout)
	defer deadline.Stop()
	ticker := time.NewTicker(filePause)
	defer ticker.Stop()
	for {
		raw, err := os.ReadFile(path)
		if err == nil && strings.HasSuffix(string(raw), "\n") {
			return strings.TrimSuffix(string(raw), "\n"), nil
		}
		select {
		case <-deadline.C:
			return "", fmt.Errorf("reading %s of pod %s: it is not complete: %q (%v)", name, pod.Name, raw, err)
		case <-ticker.C:
		}
	}
}
