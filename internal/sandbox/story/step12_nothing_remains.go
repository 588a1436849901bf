package story

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

// nothingRemains: sets, pods and claims are deleted; no volume, image, device,
// mount or hold on capacity is left.
func (t *teller) nothingRemains(ctx context.Context) error {
	if err := t.letKeptGo(ctx); err != nil {
		return err
	}
	pods, err := t.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	claims, err := t.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing claims: %w", err)
	}
	if err := t.deleteAll(ctx); err != nil {
		return err
	}
	t.say("%d pods and %d claims were deleted; no pod, claim, PersistentVolume or VolumeAttachment is left", len(pods.Items), len(claims.Items))
	if err := t.checkNothing(ctx); err != nil {
		return err
	}
	return t.fillsAgain(ctx)
}

// letKeptGo has the kept volumes deleted with their claims.
func (t *teller) letKeptGo(ctx context.Context) error {
	volumes, err := t.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing volumes: %w", err)
	}
	patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	for _, pv := range volumes.Items {
		if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			continue
		}
		if _, err := t.client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("changing the policy of volume %s: %w", pv.Name, err)
		}
	}
	return nil
}

// deleteAll deletes every set, pod and claim of the story and waits until they
// and their volumes are gone.
func (t *teller) deleteAll(ctx context.Context) error {
	var all metav1.ListOptions
	if err := t.client.AppsV1().StatefulSets(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return fmt.Errorf("deleting the sets: %w", err)
	}
	if err := t.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return fmt.Errorf("deleting the pods: %w", err)
	}
	if err := t.client.CoreV1().PersistentVolumeClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return fmt.Errorf("deleting the claims: %w", err)
	}
	if _, err := until(ctx, t.podKind(), none[*corev1.Pod]); err != nil {
		return err
	}
	if _, err := until(ctx, t.claimKind(), none[*corev1.PersistentVolumeClaim]); err != nil {
		return err
	}
	if _, err := until(ctx, t.volumeKind(), none[*corev1.PersistentVolume]); err != nil {
		return err
	}
	attachments, err := t.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing attachments: %w", err)
	}
	if n := len(attachments.Items); n > 0 {
		return fmt.Errorf("%d VolumeAttachments are left", n)
	}
	return nil
}

// checkNothing looks at the machine, and at the capacity that it publishes.
func (t *teller) checkNothing(ctx context.Context) error {
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
	images, err := imagesOf(n)
	if err != nil {
		return err
	}
	if len(images) > 0 {
		return fmt.Errorf("%d images are left, the first %s", len(images), images[0])
	}
	return nil
}

// roomIsBack wants each pool's room to be what it was at first.
func (t *teller) roomIsBack(have map[string]*storagev1.CSIStorageCapacity) string {
	room := roomOf(have, classExt4)
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
	if err := t.makeClaim(ctx, name, class, size); err != nil {
		return err
	}
	pod, err := t.runPod(ctx, t.podWith(name, name))
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("pod %s is on %s, want %s", name, pod.Spec.NodeName, node)
	}
	if _, err := t.volumeOf(ctx, pod, name); err != nil {
		return err
	}
	t.say("no hold on capacity is left: a claim of %s, all that %s has, is provisioned there", volume.FormatBytes(size), node)
	if err := t.deleteAll(ctx); err != nil {
		return err
	}
	for _, n := range t.cluster.Nodes() {
		if err := t.checkNode(n); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return nil
}
