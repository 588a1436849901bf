package story

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/volume"
)

const (
	earlyClaims = 4
	earlySize   = 96 * volume.MiB
)

// wantEarly is where the claims without a pod go: to the nodes with room, each
// time to the one with the most.
func wantEarly() map[string]int { return map[string]int{"node-1": 2, "node-2": 2} }

// claimsAreAssigned: claims of an immediate class are bound without a pod, spread
// over the nodes with room; a pod that comes later goes where its volume is.
func (t *teller) claimsAreAssigned(ctx context.Context) error {
	room, err := t.room(ctx, classImmediate)
	if err != nil {
		return err
	}
	if room["node-3"] >= earlySize {
		return fmt.Errorf("node-3 has %s, which is room for a claim of %s: the step would prove less", volume.FormatBytes(room["node-3"]), volume.FormatBytes(earlySize))
	}
	names := make([]string, 0, earlyClaims)
	for i := range earlyClaims {
		name := fmt.Sprintf("early-%d", i)
		if err := t.makeClaim(ctx, name, classImmediate, earlySize); err != nil {
			return err
		}
		names = append(names, name)
	}
	claims, err := until(ctx, t.claimKind(), bound(names...))
	if err != nil {
		return err
	}
	placed := map[string]int{}
	for _, name := range names {
		node, err := t.cluster.Node(claims[name].Annotations[volume.AnnSelectedNode])
		if err != nil {
			return fmt.Errorf("claim %s: %w", name, err)
		}
		if _, err := t.boundVolume(ctx, name, node); err != nil {
			return err
		}
		placed[node.Name]++
	}
	if !maps.Equal(placed, wantEarly()) {
		return fmt.Errorf("volumes per node are %v, want %v; room was %v", placed, wantEarly(), room)
	}
	t.say("%d claims of %s, class %s, are Bound, and no pod uses them", earlyClaims, volume.FormatBytes(earlySize), classImmediate)
	t.say("two on node-1 and two on node-2, which had %s and %s; node-3 had %s, not enough for one",
		volume.FormatBytes(room["node-1"]), volume.FormatBytes(room["node-2"]), volume.FormatBytes(room["node-3"]))
	return t.podFollows(ctx, claims[names[0]])
}

// podFollows: a pod runs where the volume of its claim is.
func (t *teller) podFollows(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	pod, err := t.runPod(ctx, t.podWith("follower", claim.Name))
	if err != nil {
		return err
	}
	if want := claim.Annotations[volume.AnnSelectedNode]; pod.Spec.NodeName != want {
		return fmt.Errorf("pod %s is on %s, want %s", pod.Name, pod.Spec.NodeName, want)
	}
	v, err := t.volumeOf(ctx, pod, claim.Name)
	if err != nil {
		return err
	}
	words, err := t.words(pod, claim.Name)
	if err != nil {
		return err
	}
	t.say("pod %s came later, and runs on %s with volume %s; it holds %q", pod.Name, pod.Spec.NodeName, v.pv.Name, words)
	return nil
}

// bound wants the named claims to be bound.
func bound(names ...string) func(map[string]*corev1.PersistentVolumeClaim) string {
	return func(have map[string]*corev1.PersistentVolumeClaim) string {
		for _, n := range names {
			if c := have[n]; c == nil || c.Status.Phase != corev1.ClaimBound {
				return fmt.Sprintf("claim %s is not Bound", n)
			}
		}
		return ""
	}
}
