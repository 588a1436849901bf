package story

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

// What happens around the death of an agent: a pod that begins just before it,
// and one that begins while there is none.
const (
	lateSize = 16 * volume.MiB
	latePod  = "late"
	laterPod = "later"
)

// watched are pods that must not notice that the agent dies: what they have
// mounted, and who they are.
type watched struct {
	pods map[string]*corev1.Pod
	// words by pod/claim.
	words map[string]string
	// outside are the machine's mounts of the pods' volumes, inside those that
	// each pod sees, by pod.
	outside map[string]mountRow
	inside  map[string]map[string]mountRow
}

// agentIsKilled: an agent is killed in the middle of its work and started
// again; running pods do not notice, and what was half done comes to its end.
func (t *teller) agentIsKilled(ctx context.Context) error {
	node, err := t.cluster.Node(otherNode)
	if err != nil {
		return err
	}
	agent, err := t.cluster.Process(node.AgentProcess())
	if err != nil {
		return err
	}
	before, err := t.watch(ctx, node)
	if err != nil {
		return err
	}
	if err := t.beginWork(ctx, node); err != nil {
		return err
	}
	if err := agent.Kill(); err != nil {
		return err
	}
	if err := t.sayHalfDone(ctx, node); err != nil {
		return err
	}
	if err := t.unharmed(ctx, node, before); err != nil {
		return fmt.Errorf("without an agent: %w", err)
	}
	if err := t.laterWaits(ctx, node); err != nil {
		return err
	}
	if err := agent.Start(); err != nil {
		return err
	}
	if err := t.workEnds(ctx, node); err != nil {
		return err
	}
	if err := t.unharmed(ctx, node, before); err != nil {
		return fmt.Errorf("with the new agent: %w", err)
	}
	t.say("%d pods ran on with the same process, data and %d mounts, none of them made anew", len(before.pods), len(before.outside))
	return nil
}

// watch notes the pods that run on a node, save the one that is about to go.
func (t *teller) watch(ctx context.Context, node sandbox.Node) (watched, error) {
	w := watched{pods: map[string]*corev1.Pod{}, words: map[string]string{}}
	pods, err := t.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return w, fmt.Errorf("listing the pods of %s: %w", node.Name, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Name == mixPod {
			continue
		}
		w.pods[pod.Name] = pod
		for _, claim := range claimsOf(pod) {
			if w.words[pod.Name+"/"+claim], err = t.words(pod, claim); err != nil {
				return w, err
			}
		}
	}
	if len(w.pods) < 2 {
		return w, fmt.Errorf("%d pods run on %s, want at least 2", len(w.pods), node.Name)
	}
	w.outside, w.inside, err = t.mountsFor(ctx, w.pods)
	return w, err
}

// mountsFor reads the mounts of pods' volumes, on the machine and in each pod.
func (t *teller) mountsFor(ctx context.Context, pods map[string]*corev1.Pod) (outside map[string]mountRow, inside map[string]map[string]mountRow, err error) {
	devices := map[string]bool{}
	for _, pod := range pods {
		for _, claim := range claimsOf(pod) {
			v, err := t.volumeOf(ctx, pod, claim)
			if err != nil {
				return nil, nil, err
			}
			devices[v.loop.Device] = true
		}
	}
	rows, err := readMounts(os.Getpid())
	if err != nil {
		return nil, nil, err
	}
	inside = map[string]map[string]mountRow{}
	for name, pod := range pods {
		pid, err := pidOf(pod)
		if err != nil {
			return nil, nil, err
		}
		own, err := readMounts(pid)
		if err != nil {
			return nil, nil, err
		}
		inside[name] = mountsOf(own, devices)
	}
	return mountsOf(rows, devices), inside, nil
}

// beginWork gives the agent work: a pod with two volumes to take away, volumes
// included, and one with a volume to make. It returns as soon as the latter is
// the agent's to do.
func (t *teller) beginWork(ctx context.Context, node sandbox.Node) error {
	if err := t.deletePod(ctx, mixPod); err != nil {
		return err
	}
	for _, claim := range []string{"xfs", "ext4"} {
		if err := t.deleteClaim(ctx, claim); err != nil {
			return err
		}
	}
	if err := t.makeClaim(ctx, latePod, classExt4, lateSize); err != nil {
		return err
	}
	if err := t.makePod(ctx, onNode(t.podWith(latePod, latePod), node.Name)); err != nil {
		return err
	}
	_, err := until(ctx, t.claimKind(), func(have map[string]*corev1.PersistentVolumeClaim) string {
		if c := have[latePod]; c == nil || c.Annotations[volume.AnnSelectedNode] != node.Name {
			return fmt.Sprintf("claim %s is not given to %s", latePod, node.Name)
		}
		return ""
	})
	return err
}

// sayHalfDone tells what the agent left. How far it came is chance; the story
// holds for any.
func (t *teller) sayHalfDone(ctx context.Context, node sandbox.Node) error {
	claim, err := t.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, latePod, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading claim %s: %w", latePod, err)
	}
	pods, err := t.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	leaving := "is gone"
	for _, p := range pods.Items {
		if p.Name == mixPod {
			leaving = "is being deleted"
		}
	}
	t.say("kill -9 of the agent of %s; at that moment pod %s %s, and claim %s is %s", node.Name, mixPod, leaving, latePod, claim.Status.Phase)
	return nil
}

// unharmed holds the watched pods against what was noted of them.
func (t *teller) unharmed(ctx context.Context, node sandbox.Node, before watched) error {
	for name, old := range before.pods {
		pod, err := t.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading pod %s: %w", name, err)
		}
		was, is := old.Status.ContainerStatuses[0], pod.Status.ContainerStatuses[0]
		if pod.UID != old.UID || is.ContainerID != was.ContainerID || is.RestartCount != was.RestartCount || !ready(pod) {
			return fmt.Errorf("pod %s was %s (%d restarts), and is %s (%d restarts)", name, was.ContainerID, was.RestartCount, is.ContainerID, is.RestartCount)
		}
		for _, claim := range claimsOf(pod) {
			words, err := t.words(pod, claim)
			if err != nil {
				return err
			}
			if want := before.words[name+"/"+claim]; words != want {
				return fmt.Errorf("claim %s of pod %s held %q, now %q", claim, name, want, words)
			}
		}
	}
	outside, inside, err := t.mountsFor(ctx, before.pods)
	if err != nil {
		return err
	}
	if !maps.Equal(outside, before.outside) {
		return fmt.Errorf("mounts on %s were %v, and are %v", node.Name, before.outside, outside)
	}
	for name, rows := range before.inside {
		if !maps.Equal(inside[name], rows) {
			return fmt.Errorf("mounts in pod %s were %v, and are %v", name, rows, inside[name])
		}
	}
	return nil
}

// laterWaits makes a pod that needs the agent while there is none.
func (t *teller) laterWaits(ctx context.Context, node sandbox.Node) error {
	if err := t.makeClaim(ctx, laterPod, classExt4, lateSize); err != nil {
		return err
	}
	if err := t.makePod(ctx, onNode(t.podWith(laterPod, laterPod), node.Name)); err != nil {
		return err
	}
	claims, err := until(ctx, t.claimKind(), func(have map[string]*corev1.PersistentVolumeClaim) string {
		if c := have[laterPod]; c == nil || c.Annotations[volume.AnnSelectedNode] != node.Name {
			return fmt.Sprintf("claim %s is not given to %s", laterPod, node.Name)
		}
		return ""
	})
	if err != nil {
		return err
	}
	if phase := claims[laterPod].Status.Phase; phase != corev1.ClaimPending {
		return fmt.Errorf("claim %s is %s, and there is no agent", laterPod, phase)
	}
	t.say("without an agent, pods on %s run on; pod %s comes to it, and its claim waits", node.Name, laterPod)
	return nil
}

// workEnds waits until what was begun is done: the one pod and its volumes are
// gone, the others run.
func (t *teller) workEnds(ctx context.Context, node sandbox.Node) error {
	pods, err := t.untilReady(ctx, latePod, laterPod)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		if _, err := t.volumeOf(ctx, pods[name], name); err != nil {
			return err
		}
	}
	if _, err := until(ctx, t.podKind(), gone[*corev1.Pod](mixPod)); err != nil {
		return err
	}
	if _, err := until(ctx, t.claimKind(), gone[*corev1.PersistentVolumeClaim]("xfs", "ext4")); err != nil {
		return err
	}
	volumes, err := until(ctx, t.volumeKind(), func(have map[string]*corev1.PersistentVolume) string {
		for _, pv := range have {
			if ref := pv.Spec.ClaimRef; ref != nil && (ref.Name == "xfs" || ref.Name == "ext4") {
				return fmt.Sprintf("volume %s of claim %s is still there", pv.Name, ref.Name)
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	if err := t.checkImages(volumes); err != nil {
		return err
	}
	t.say("the agent of %s runs again: pods %s and %s run with their volumes, pod %s and its volumes are gone", node.Name, latePod, laterPod, mixPod)
	return nil
}
