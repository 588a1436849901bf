package story

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/internal/sandbox/podruntime"
	"github.com/berth-storage/berth/volume"
)

// claimGrows: a claim is made larger; the pod, never restarted, sees it.
func (t *teller) claimGrows(ctx context.Context) error {
	pod := t.set[setName+"-0"]
	before, err := t.sizeInside(pod)
	if err != nil {
		return err
	}
	name := claimOfSet(pod.Name)
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":"%s"}}}}`, quantity(grownSize))
	if _, err := t.client.CoreV1().PersistentVolumeClaims(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("growing claim %s: %w", name, err)
	}
	t.say("claim %s now asks for %s instead of %s; pod %s sees %s", name, volume.FormatBytes(grownSize), volume.FormatBytes(claimSize), pod.Name, volume.FormatBytes(before))
	if _, err := until(ctx, t.claimKind(), func(have map[string]*corev1.PersistentVolumeClaim) string {
		return grown(have[name])
	}); err != nil {
		return err
	}
	v, err := t.volumeOf(ctx, pod, name)
	if err != nil {
		return err
	}
	if got := v.pv.Spec.Capacity.Storage().Value(); got < grownSize {
		return fmt.Errorf("volume %s has %s, want %s", v.pv.Name, volume.FormatBytes(got), volume.FormatBytes(grownSize))
	}
	if v.loop.Size < grownSize {
		return fmt.Errorf("%s has %s, want %s", v.loop.Device, volume.FormatBytes(v.loop.Size), volume.FormatBytes(grownSize))
	}
	t.say("claim, volume and loop device have %s", volume.FormatBytes(grownSize))
	after, err := t.sizeInside(pod)
	if err != nil {
		return err
	}
	// A filesystem shows less than its device; what was added shows nearly whole.
	if want := before + (grownSize-claimSize)*3/4; after < want {
		return fmt.Errorf("pod %s sees %s, before %s, want at least %s", pod.Name, volume.FormatBytes(after), volume.FormatBytes(before), volume.FormatBytes(want))
	}
	said, err := t.saidSize(ctx, pod, after)
	if err != nil {
		return err
	}
	now, err := t.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading pod %s: %w", pod.Name, err)
	}
	if now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		return fmt.Errorf("pod %s was started anew while its claim grew", pod.Name)
	}
	t.say("pod %s, running all the while, says in its log that it sees %s", pod.Name, volume.FormatBytes(said))
	return nil
}

func grown(claim *corev1.PersistentVolumeClaim) string {
	if claim == nil {
		return "the claim is gone"
	}
	if got := claim.Status.Capacity.Storage().Value(); got < grownSize {
		return fmt.Sprintf("claim %s has %s, conditions %v", claim.Name, volume.FormatBytes(got), claim.Status.Conditions)
	}
	for _, c := range claim.Status.Conditions {
		if c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue {
			return fmt.Sprintf("claim %s: %s", claim.Name, c.Message)
		}
	}
	return ""
}

// sizeInside is the size of the volume in the pod's own mount namespace.
func (t *teller) sizeInside(pod *corev1.Pod) (int64, error) {
	path, err := inside(pod, mountPath(setVolume))
	if err != nil {
		return 0, err
	}
	u, err := t.machine.Statfs(path)
	return u.TotalBytes, err
}

// saidSize waits until the pod itself says that it sees at least this size.
func (t *teller) saidSize(ctx context.Context, pod *corev1.Pod, want int64) (int64, error) {
	node, err := t.cluster.Node(pod.Spec.NodeName)
	if err != nil {
		return 0, err
	}
	file, err := podruntime.LogFile([]string{node.Runtime()}, namespace, pod.Name, "main")
	if err != nil {
		return 0, err
	}
	var said int64
	err = untilFile(ctx, file, func(content string) string {
		lines := strings.Split(strings.TrimSpace(content), "\n")
		last, ok := strings.CutPrefix(lines[len(lines)-1], "size ")
		if !ok {
			return fmt.Sprintf("its last line is %q", lines[len(lines)-1])
		}
		if said, err = strconv.ParseInt(strings.TrimSpace(last), 10, 64); err != nil || said < want {
			return fmt.Sprintf("it says %q, want at least %d", last, want)
		}
		return ""
	})
	return said, err
}
