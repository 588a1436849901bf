package story

import (
	"context"
	"fmt"
	"strings"

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

// claimsOf are the names of a pod's claims.
func claimsOf(pod *corev1.Pod) []string {
	var names []string
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

// volumeOf finds the volume of a pod's claim, and holds the API against the
// machine: the PersistentVolume is bound both ways, belongs to the pod's node
// and is a loop device on that node's pool, mounted for that pod.
func (t *teller) volumeOf(ctx context.Context, pod *corev1.Pod, claim string) (volumeOfPod, error) {
	node, err := t.cluster.Node(pod.Spec.NodeName)
	if err != nil {
		return volumeOfPod{}, err
	}
	v, err := t.boundVolume(ctx, claim, node)
	if err != nil {
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

// boundVolume finds the volume of a claim in the API.
func (t *teller) boundVolume(ctx context.Context, claim string, node sandbox.Node) (volumeOfPod, error) {
	var v volumeOfPod
	var err error
	if v.claim, err = t.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{}); err != nil {
		return v, fmt.Errorf("reading claim %s: %w", claim, err)
	}
	if v.claim.Status.Phase != corev1.ClaimBound {
		return v, fmt.Errorf("claim %s is %s, want Bound", claim, v.claim.Status.Phase)
	}
	if v.pv, err = t.client.CoreV1().PersistentVolumes().Get(ctx, v.claim.Spec.VolumeName, metav1.GetOptions{}); err != nil {
		return v, fmt.Errorf("reading volume %s: %w", v.claim.Spec.VolumeName, err)
	}
	return v, checkVolume(v, node)
}

func checkVolume(v volumeOfPod, node sandbox.Node) error {
	pv := v.pv
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != volume.DriverName {
		return fmt.Errorf("volume %s is not one of %s", pv.Name, volume.DriverName)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != v.claim.UID {
		return fmt.Errorf("volume %s is not bound to claim %s", pv.Name, v.claim.Name)
	}
	if got := nodeOf(pv); got != node.Name {
		return fmt.Errorf("volume %s: its node affinity names %q, want %s", pv.Name, got, node.Name)
	}
	return nil
}

// nodeOf is the node that a volume's affinity names, "" for none.
func nodeOf(pv *corev1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == volume.TopologyNodeKey && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
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
