package story

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

// nothingRemains: set and claims are deleted; no volume, image, device, mount or
// hold on capacity is left.
func (t *teller) nothingRemains(ctx context.Context) error {
	if err := t.client.AppsV1().StatefulSets(namespace).Delete(ctx, setName, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting StatefulSet %s: %w", setName, err)
	}
	if err := t.deleteClaims(ctx); err != nil {
		return err
	}
	if err := t.checkNothing(ctx); err != nil {
		return err
	}
	return t.fillsAgain(ctx)
}

// deleteClaims deletes every claim of the story and waits until pods, claims and
// volumes are gone.
func (t *teller) deleteClaims(ctx context.Context) error {
	if err := t.client.CoreV1().PersistentVolumeClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("deleting the claims: %w", err)
	}
	if _, err := until(ctx, t.podKind(), none[*corev1.Pod]); err != nil {
		return err
	}
	if _, err := until(ctx, t.claimKind(), none[*corev1.PersistentVolumeClaim]); err != nil {
		return err
	}
	_, err := until(ctx, t.volumeKind(), none[*corev1.PersistentVolume])
	return err
}

func none[T any](have map[string]T) string {
	if len(have) == 0 {
		return ""
	}
	return fmt.Sprintf("%v are still there", slices.Sorted(maps.Keys(have)))
}

// checkNothing looks at the API and at the machine.
func (t *teller) checkNothing(ctx context.Context) error {
	attachments, err := t.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing attachments: %w", err)
	}
	if n := len(attachments.Items); n > 0 {
		return fmt.Errorf("%d VolumeAttachments are left", n)
	}
	t.say("no pod, claim, PersistentVolume or VolumeAttachment is left")
	for _, n := range t.cluster.Nodes() {
		if err := t.checkNode(n); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	t.say("no image file, loop device or mount is left on any node")
	if _, err := until(ctx, t.capacityKind(), t.roomIsBack); err != nil {
		return err
	}
	t.say("every node publishes the capacity that it had at first")
	return nil
}

// imageMin is larger than anything in a pool that is not a volume's image.
const imageMin = 16 * volume.MiB

func (t *teller) checkNode(n sandbox.Node) error {
	mounts, err := t.machine.MountsUnder(n.Root())
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%d mounts are left, the first at %s", len(mounts), mounts[0].Target)
	}
	loops, err := t.machine.LoopsUnder(n.Pool())
	if err != nil {
		return err
	}
	if len(loops) > 0 {
		return fmt.Errorf("%d loop devices are left, the first %s of %s", len(loops), loops[0].Device, loops[0].File)
	}
	return filepath.WalkDir(n.Pool(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Size() >= imageMin {
			return fmt.Errorf("the image %s is left", path)
		}
		return nil
	})
}

// roomIsBack wants each pool's room to be what it was at first.
func (t *teller) roomIsBack(have map[string]*storagev1.CSIStorageCapacity) string {
	room := roomOf(have)
	for _, name := range slices.Sorted(maps.Keys(t.roomBefore)) {
		// The filesystem keeps a little metadata of what it once held.
		if room[name] < t.roomBefore[name]-volume.MiB {
			return fmt.Sprintf("%s publishes %s, at first %s", name, volume.FormatBytes(room[name]), volume.FormatBytes(t.roomBefore[name]))
		}
	}
	return ""
}

// fillsAgain: a claim of nearly all that the larger node has goes there at once;
// a hold that the scheduler had kept would not let it.
func (t *teller) fillsAgain(ctx context.Context) error {
	const name, node = "whole", "node-1"
	size := (t.roomBefore[node] - 8*volume.MiB) / volume.MiB * volume.MiB
	big := claim(name, size)
	if _, err := t.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &big, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making claim %s: %w", name, err)
	}
	spec := podSpec()
	spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: spec}
	if _, err := t.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making pod %s: %w", name, err)
	}
	pods, err := until(ctx, t.podKind(), allReady(1))
	if err != nil {
		return err
	}
	if got := pods[name].Spec.NodeName; got != node {
		return fmt.Errorf("pod %s is on %s, want %s", name, got, node)
	}
	if _, err := t.volumeOf(ctx, pods[name]); err != nil {
		return err
	}
	t.say("no hold on capacity is left: a claim of %s, all that %s has, is provisioned there", volume.FormatBytes(size), node)
	if err := t.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting pod %s: %w", name, err)
	}
	if err := t.deleteClaims(ctx); err != nil {
		return err
	}
	return t.checkNothing(ctx)
}
