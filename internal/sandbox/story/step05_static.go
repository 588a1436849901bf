package story

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/volume"
)

// The kept volumes, none in the order of its size, and the claims that find
// them: each the smallest that has room.
const (
	keptSmall  = 64 * volume.MiB
	keptMiddle = 128 * volume.MiB
	keptLarge  = 256 * volume.MiB
	findMiddle = 100 * volume.MiB
	findSmall  = 20 * volume.MiB
	findLarge  = 200 * volume.MiB
)

// keptVolume is a volume that outlives its claim.
type keptVolume struct {
	name  string
	uid   types.UID
	words string
}

// volumeIsFound: volumes with data are left without claims; new claims are bound
// to them, each to the smallest that fits, and none is provisioned.
func (t *teller) volumeIsFound(ctx context.Context) error {
	kept, err := t.keepVolumes(ctx)
	if err != nil {
		return err
	}
	t.say("pod writer and its claims are gone; of class %s, which keeps, volumes of 128, 256 and 64 MiB are Available on %s, each with its words", classKept, otherNode)
	if err := t.finds(ctx, "reader", map[string]int64{"middle": findMiddle}, map[string]keptVolume{"middle": kept[keptMiddle]}); err != nil {
		return err
	}
	if _, err := until(ctx, t.volumeKind(), available(kept[keptSmall].name, kept[keptLarge].name)); err != nil {
		return err
	}
	t.say("a claim of %s got the volume of 128 MiB, the smallest that fits; pod reader runs where it lies and reads %q", volume.FormatBytes(findMiddle), kept[keptMiddle].words)
	if err := t.finds(ctx, "readers", map[string]int64{"large": findLarge, "small": findSmall},
		map[string]keptVolume{"large": kept[keptLarge], "small": kept[keptSmall]}); err != nil {
		return err
	}
	if _, err := until(ctx, t.volumeKind(), ofClass(classKept, len(kept))); err != nil {
		return err
	}
	t.say("one pod's claims of %s and %s got those of 256 and 64 MiB; no volume was made", volume.FormatBytes(findLarge), volume.FormatBytes(findSmall))
	return nil
}

// keepVolumes makes volumes with a pod's words in them, and takes pod and claims
// away; the volumes are returned by their sizes.
func (t *teller) keepVolumes(ctx context.Context) (map[int64]keptVolume, error) {
	const writer = "writer"
	claims := map[int64]string{keptMiddle: "first", keptLarge: "second", keptSmall: "third"}
	for size, name := range claims {
		if err := t.makeClaim(ctx, name, classKept, size); err != nil {
			return nil, err
		}
	}
	pod, err := t.runPod(ctx, t.podWith(writer, "first", "second", "third"))
	if err != nil {
		return nil, err
	}
	kept := map[int64]keptVolume{}
	for size, name := range claims {
		v, err := t.volumeOf(ctx, pod, name)
		if err != nil {
			return nil, err
		}
		words, err := t.words(pod, name)
		if err != nil {
			return nil, err
		}
		if got := v.pv.Spec.Capacity.Storage().Value(); got != size || nodeOf(v.pv) != otherNode {
			return nil, fmt.Errorf("volume %s has %s on %s, want %s on %s", v.pv.Name, volume.FormatBytes(got), nodeOf(v.pv), volume.FormatBytes(size), otherNode)
		}
		kept[size] = keptVolume{v.pv.Name, v.pv.UID, words}
	}
	if err := t.deletePod(ctx, writer); err != nil {
		return nil, err
	}
	for _, name := range claims {
		if err := t.deleteClaim(ctx, name); err != nil {
			return nil, err
		}
	}
	return kept, t.setFree(ctx, kept)
}

// setFree lets other claims have volumes whose claims are gone, as an operator
// does.
func (t *teller) setFree(ctx context.Context, kept map[int64]keptVolume) error {
	names := make([]string, 0, len(kept))
	for _, v := range kept {
		names = append(names, v.name)
	}
	if _, err := until(ctx, t.volumeKind(), inPhase(corev1.VolumeReleased, names...)); err != nil {
		return err
	}
	patch := []byte(`{"spec":{"claimRef":null}}`)
	for _, n := range names {
		if _, err := t.client.CoreV1().PersistentVolumes().Patch(ctx, n, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("freeing volume %s: %w", n, err)
		}
	}
	_, err := until(ctx, t.volumeKind(), available(names...))
	return err
}

// finds runs a pod with claims of class kept, and wants each claim to have its
// volume, with the words that are in it.
func (t *teller) finds(ctx context.Context, name string, sizes map[string]int64, want map[string]keptVolume) error {
	var claims []string
	for claim, size := range sizes {
		if err := t.makeClaim(ctx, claim, classKept, size); err != nil {
			return err
		}
		claims = append(claims, claim)
	}
	pod, err := t.runPod(ctx, t.podWith(name, claims...))
	if err != nil {
		return err
	}
	for claim, kept := range want {
		v, err := t.volumeOf(ctx, pod, claim)
		if err != nil {
			return err
		}
		if v.pv.Name != kept.name || v.pv.UID != kept.uid {
			return fmt.Errorf("claim %s got volume %s of %s, want %s", claim, v.pv.Name, v.pv.Spec.Capacity.Storage(), kept.name)
		}
		words, err := t.words(pod, claim)
		if err != nil {
			return err
		}
		if words != kept.words {
			return fmt.Errorf("volume %s held %q, now %q", v.pv.Name, kept.words, words)
		}
	}
	return nil
}

func available(names ...string) func(map[string]*corev1.PersistentVolume) string {
	return inPhase(corev1.VolumeAvailable, names...)
}

// inPhase wants the named volumes to be in a phase.
func inPhase(phase corev1.PersistentVolumePhase, names ...string) func(map[string]*corev1.PersistentVolume) string {
	return func(have map[string]*corev1.PersistentVolume) string {
		for _, n := range names {
			if pv := have[n]; pv == nil || pv.Status.Phase != phase {
				return fmt.Sprintf("%s is not %s", n, phase)
			}
		}
		return ""
	}
}

// ofClass wants this many volumes of a class.
func ofClass(class string, n int) func(map[string]*corev1.PersistentVolume) string {
	return func(have map[string]*corev1.PersistentVolume) string {
		count := 0
		for _, pv := range have {
			if pv.Spec.StorageClassName == class {
				count++
			}
		}
		if count != n {
			return fmt.Sprintf("%d volumes of class %s, want %d", count, class, n)
		}
		return ""
	}
}
