package story

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/volume"
)

// setIsPlaced: every pod of the set runs in the allowed zone, on a node that had
// room, and wrote to its volume.
func (t *teller) setIsPlaced(ctx context.Context) error {
	if _, err := t.client.AppsV1().StatefulSets(namespace).Create(ctx, set(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making StatefulSet %s: %w", setName, err)
	}
	t.say("StatefulSet %s asks for %d volumes of %s, class %s, zone-1 only, bound where the pod goes", setName, replicas, volume.FormatBytes(claimSize), class)
	pods, err := until(ctx, t.podKind(), allReady(replicas))
	if err != nil {
		return err
	}
	t.pods = pods
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
		v, err := t.volumeOf(ctx, pod)
		if err != nil {
			return err
		}
		words, err := t.read(pod, "words")
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
	t.say("two on node-1 and one on node-3, as room allowed; node-2 has the most room, and is in the wrong zone")
	return nil
}

// allReady wants n pods that run and are ready, none of them on its way out.
func allReady(n int) func(map[string]*corev1.Pod) string {
	return func(have map[string]*corev1.Pod) string {
		if len(have) != n {
			return fmt.Sprintf("%d pods, want %d", len(have), n)
		}
		for name, p := range have {
			if p.DeletionTimestamp != nil || !ready(p) {
				return fmt.Sprintf("pod %s is %s on node %q, not ready", name, p.Status.Phase, p.Spec.NodeName)
			}
		}
		return ""
	}
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
