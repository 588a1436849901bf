package nodeagent

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/nodeagent/apply"
	"github.com/berth-storage/berth/nodeagent/desired"
	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

// Event reasons are the kubelet's (pkg/kubelet/events), so that what watches
// for them keeps working.
const (
	eventFailedMount   = "FailedMount"
	eventFailedMap     = "FailedMapVolume"
	eventFailedUnmount = "FailedUnMount"
	eventGrown         = "FileSystemResizeSuccessful"
	eventGrowFailed    = "VolumeResizeFailed"
)

func podRef(p plan.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)}
}

func claimRef(c plan.Claim) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: types.UID(c.UID)}
}

// tellFailure makes an event of a failed step for everybody whom it keeps
// waiting.
func (a *Agent) tellFailure(in plan.Input, failed *apply.StepError) {
	warn := func(p plan.Pod, reason string) {
		a.cfg.Recorder.Event(podRef(p), corev1.EventTypeWarning, reason, failed.Error())
	}
	switch failed.Step.Op {
	case plan.OpStage, plan.OpPublish:
		for _, u := range in.Wanted.Pods {
			if failed.Step.Pod != "" && failed.Step.Pod != u.Pod.UID {
				continue
			}
			if in.Wanted.Block {
				warn(u.Pod, eventFailedMap)
			} else {
				warn(u.Pod, eventFailedMount)
			}
		}
	case plan.OpGrow:
		a.cfg.Recorder.Event(claimRef(in.Wanted.PVC), corev1.EventTypeWarning, eventGrowFailed, failed.Error())
	case plan.OpUnpublish:
		warn(in.Record.Pods[failed.Step.Pod].Pod, eventFailedUnmount)
	case plan.OpUnstage, plan.OpForget:
		// Nobody waits for it; the log has it.
	}
}

func (a *Agent) tellSuccess(in plan.Input, step plan.Step) {
	if step.Op == plan.OpGrow {
		a.cfg.Recorder.Eventf(claimRef(in.Wanted.PVC), corev1.EventTypeNormal, eventGrown,
			"volume grown to %s on node %s", volume.FormatBytes(step.Size), a.cfg.NodeName)
	}
}

// tellWaits makes an event of each wait that is new.
func (a *Agent) tellWaits(in plan.Input, waits []plan.Wait, before progress) {
	known := make(map[plan.Wait]bool, len(before.plan.Waits))
	for _, w := range before.plan.Waits {
		known[w] = true
	}
	for _, w := range waits {
		if in.Wanted == nil || known[w] {
			continue
		}
		if w.Pod == "" {
			a.cfg.Recorder.Event(claimRef(in.Wanted.PVC), corev1.EventTypeWarning, eventGrowFailed, w.String())
			continue
		}
		for _, u := range in.Wanted.Pods {
			if u.Pod.UID == w.Pod {
				a.cfg.Recorder.Eventf(podRef(u.Pod), corev1.EventTypeWarning, eventFailedMount, "volume %q: %s", u.Name, w.Refusal)
			}
		}
	}
}

// tellProblems makes an event of each problem of a pod's volume that is new.
func (a *Agent) tellProblems(before, now *desired.Snapshot) {
	for uid, pod := range now.Pods {
		if pod.State != plan.PodActive {
			continue
		}
		for i, v := range pod.Volumes {
			if v.Problem == nil || v.Problem.Reason == volume.ReasonPending {
				continue
			}
			if old := before.Pods[uid].Volumes; i < len(old) && old[i].Problem != nil && *old[i].Problem == *v.Problem {
				continue
			}
			a.cfg.Recorder.Event(podRef(pod.Pod), corev1.EventTypeWarning, eventFailedMount, v.String())
		}
	}
}
