package story

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-storage/berth/volume"
)

// setIsPlaced: every pod of the set runs in the allowed zone, on a node that had
// room, and wrote to its volume.
func (t *teller) setIsPlaced(ctx context.Context) error {
	if err := t.makeSet(ctx, t.setOf(setName, replicas, tellSize, claimOf(setVolume, class, claimSize))); err != nil {
		return err
	}
	t.say("StatefulSet %s asks for %d volumes of %s, class %s, %s only, bound where the pod goes", setName, replicas, volume.FormatBytes(claimSize), class, zone)
	pods, err := t.untilReady(ctx, podsOf(setName, replicas)...)
	if err != nil {
		return err
	}
	t.set = pods
	placed := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		pod := pods[name]
		placed[pod.Spec.NodeName]++
		node, err := t.cluster.Node(pod.Spec.NodeName)
		if err != nil {
			return err
		}
		if node.Zone != zone {
			return fmt.Errorf("pod %s is on %s in %s, want %s", name, node.Name, node.Zone, zone)
		}
		v, err := t.volumeOf(ctx, pod, claimOfSet(name))
		if err != nil {
			return err
		}
		words, err := t.words(pod, setVolume)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(words, name+" wrote this") {
			return fmt.Errorf("volume of pod %s holds %q", name, words)
		}
		t.say("%s runs on %s in %s; volume %s is a loop device on its pool, mounted; it holds %q", name, node.Name, node.Zone, v.pv.Name, words)
	}
	if !maps.Equal(placed, wantPods()) {
		return fmt.Errorf("pods per node are %v, want %v: a node without room was chosen", placed, wantPods())
	}
	for name := range pods {
		if _, err := until(ctx, t.eventKind(), scheduledBy(name, t.scheduler)); err != nil {
			return err
		}
	}
	t.say("placed by %s: two on node-1 and one on node-3, as room allowed; %s has the most room, and is in the wrong zone", t.scheduler, otherNode)
	return nil
}

// claimOfSet is the claim of a pod of the set.
func claimOfSet(pod string) string { return setVolume + "-" + pod }
