package story

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/volume"
)

const stockSize = 128 * volume.MiB

// stockSchedules: a pod that names no scheduler is placed by Kubernetes' own,
// through the capacity that the agents publish: on the only node with room,
// though the pod would rather be on another.
func (t *teller) stockSchedules(ctx context.Context) error {
	const name, other = "stock", "node-1"
	if _, err := t.cluster.Process("kube-scheduler"); err != nil {
		return err
	}
	room, err := t.roomWhen(ctx, classExt4, func(room map[string]int64) string {
		for node, bytes := range room {
			if (bytes >= stockSize) != (node == otherNode) {
				return fmt.Sprintf("%s has %s, want room for %s on %s alone", node, volume.FormatBytes(bytes), volume.FormatBytes(stockSize), otherNode)
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	if err := t.makeClaim(ctx, name, classExt4, stockSize); err != nil {
		return err
	}
	pod := preferring(t.podWith(name, name), other)
	pod.Spec.SchedulerName = ""
	if pod, err = t.runPod(ctx, pod); err != nil {
		return err
	}
	if pod.Spec.SchedulerName != corev1.DefaultSchedulerName || pod.Spec.NodeName != otherNode {
		return fmt.Errorf("pod %s of scheduler %s is on %s, want %s", name, pod.Spec.SchedulerName, pod.Spec.NodeName, otherNode)
	}
	if _, err := until(ctx, t.eventKind(), scheduledBy(name, corev1.DefaultSchedulerName)); err != nil {
		return err
	}
	if _, err := t.volumeOf(ctx, pod, name); err != nil {
		return err
	}
	words, err := t.words(pod, name)
	if err != nil {
		return err
	}
	t.say("a pod that names no scheduler and would rather be on %s has a claim of %s; there is room for %s on node-1, %s on node-2, %s on node-3",
		other, volume.FormatBytes(stockSize), volume.FormatBytes(room["node-1"]), volume.FormatBytes(room["node-2"]), volume.FormatBytes(room["node-3"]))
	t.say("%s, which knows nothing of Berth, placed it on %s, and its volume holds %q", corev1.DefaultSchedulerName, otherNode, words)
	return nil
}

// scheduledBy wants an event that says which scheduler placed a pod.
func scheduledBy(pod, scheduler string) func(map[string]*corev1.Event) string {
	return func(have map[string]*corev1.Event) string {
		for _, e := range have {
			if e.InvolvedObject.Kind == "Pod" && e.InvolvedObject.Name == pod && e.Reason == "Scheduled" {
				if e.ReportingController == scheduler {
					return ""
				}
				return fmt.Sprintf("pod %s was scheduled by %q, want %s", pod, e.ReportingController, scheduler)
			}
		}
		return fmt.Sprintf("pod %s has no event Scheduled", pod)
	}
}
