package story

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// podComesBack: a pod of the set is deleted; its successor has the same volume
// with the same data.
func (t *teller) podComesBack(ctx context.Context) error {
	name := setName + "-1"
	old := t.set[name]
	before, err := t.volumeOf(ctx, old, claimOfSet(name))
	if err != nil {
		return err
	}
	words, err := t.words(old, setVolume)
	if err != nil {
		return err
	}
	if err := t.deletePod(ctx, name); err != nil {
		return err
	}
	pods, err := until(ctx, t.podKind(), func(have map[string]*corev1.Pod) string {
		if p := have[name]; p != nil && p.UID == old.UID {
			return fmt.Sprintf("pod %s is still the old one", name)
		}
		return notReady(have, podsOf(setName, replicas))
	})
	if err != nil {
		return err
	}
	pod := pods[name]
	t.set[name] = pod
	t.say("pod %s was deleted; a new one runs on %s", name, pod.Spec.NodeName)
	after, err := t.volumeOf(ctx, pod, claimOfSet(name))
	if err != nil {
		return err
	}
	if before.pv.UID != after.pv.UID || before.pv.Spec.CSI.VolumeHandle != after.pv.Spec.CSI.VolumeHandle {
		return fmt.Errorf("pod %s had volume %s (%s), now %s (%s)", name, before.pv.Name, before.pv.UID, after.pv.Name, after.pv.UID)
	}
	if pod.Spec.NodeName != old.Spec.NodeName {
		return fmt.Errorf("pod %s was on %s, its volume is there, and it is on %s", name, old.Spec.NodeName, pod.Spec.NodeName)
	}
	if err := t.starts(pod, setVolume, old, pod); err != nil {
		return err
	}
	again, err := t.words(pod, setVolume)
	if err != nil {
		return err
	}
	if again != words {
		return fmt.Errorf("volume of pod %s held %q, now %q", name, words, again)
	}
	if err := t.checkUnmounted(old); err != nil {
		return err
	}
	t.say("same volume %s, same data: %q", after.pv.Name, again)
	return nil
}

// checkUnmounted: nothing is mounted any more for a pod that is gone.
func (t *teller) checkUnmounted(pod *corev1.Pod) error {
	node, err := t.cluster.Node(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	mounts, err := t.machine.MountsUnder(node.Root())
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if strings.Contains(m.Target, string(pod.UID)) {
			return fmt.Errorf("%s is still mounted for pod %s, which is gone", m.Target, pod.Name)
		}
	}
	return nil
}
