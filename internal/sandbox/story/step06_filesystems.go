package story

import (
	"context"
	"fmt"

	"github.com/berth-storage/berth/volume"
)

// The pod with two filesystems; its claims have the filesystems' names.
const (
	mixPod   = "mix"
	xfsSize  = 320 * volume.MiB
	ext4Size = 32 * volume.MiB
)

// kindsMix: one pod has two claims of two filesystems; each is what it should be,
// seen from inside the pod.
func (t *teller) kindsMix(ctx context.Context) error {
	if err := t.makeClaim(ctx, "xfs", classXFS, xfsSize); err != nil {
		return err
	}
	if err := t.makeClaim(ctx, "ext4", classExt4, ext4Size); err != nil {
		return err
	}
	pod, err := t.runPod(ctx, t.podWith(mixPod, "xfs", "ext4"))
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != otherNode {
		return fmt.Errorf("pod %s is on %s, which has no room for both claims", mixPod, pod.Spec.NodeName)
	}
	t.say("pod %s runs on %s, the only node with room for both of its claims", mixPod, otherNode)
	for _, kind := range []string{"xfs", "ext4"} {
		v, err := t.volumeOf(ctx, pod, kind)
		if err != nil {
			return err
		}
		row, err := insideMount(pod, mountPath(kind))
		if err != nil {
			return err
		}
		if row.fsType != kind || row.source != v.loop.Device {
			return fmt.Errorf("pod %s has %s of %s at %s, want %s of %s", mixPod, row.fsType, row.source, row.target, kind, v.loop.Device)
		}
		words, err := t.words(pod, kind)
		if err != nil {
			return err
		}
		t.say("its mount table has %s at %s, from %s; it holds %q", row.fsType, row.target, row.source, words)
	}
	return nil
}
