package podruntime

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observed is what the runtime knows of a pod's containers.
type observed struct {
	// statuses has an entry for every container of the pod.
	statuses map[string]corev1.ContainerStatus
	// finished are the containers that will not be started again.
	finished map[string]bool
	// started is when the runtime first saw the pod.
	started metav1.Time
}

// observe begins with what the pod's object says, since a runtime before this
// one may have run it. No process of the pod exists now: a container that ran is
// one that was lost.
func observe(pod *corev1.Pod, now metav1.Time) observed {
	o := observed{statuses: map[string]corev1.ContainerStatus{}, finished: map[string]bool{}, started: now}
	if pod.Status.StartTime != nil {
		o.started = *pod.Status.StartTime
	}
	before := map[string]corev1.ContainerStatus{}
	for _, s := range append(slices.Clip(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		before[s.Name] = s
	}
	inits := len(pod.Spec.InitContainers)
	for i, c := range allContainers(pod) {
		s, known := before[c.Name]
		s.Name, s.Image, s.Ready, s.Started = c.Name, c.Image, false, new(bool)
		if s.State.Running != nil {
			s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "ContainerStatusUnknown",
				Message:   "the container was lost with its runtime, or with the machine",
				StartedAt: s.State.Running.StartedAt, FinishedAt: now, ContainerID: s.ContainerID,
			}}
		}
		o.finished[c.Name] = known && s.State.Terminated != nil && !restarts(pod, i < inits, s.State.Terminated.ExitCode)
		if s.State.Terminated == nil {
			s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waitingReason(pod)}}
		}
		o.statuses[c.Name] = s
	}
	return o
}

func waitingReason(pod *corev1.Pod) string {
	if len(pod.Spec.InitContainers) > 0 {
		return "PodInitializing"
	}
	return "ContainerCreating"
}

// restarts reports whether a container that ended with this code is started
// again. An init container that succeeded never is.
func restarts(pod *corev1.Pod, init bool, code int32) bool {
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	default:
		return !init || code != 0
	}
}

// initialized reports whether every init container succeeded.
func (o observed) initialized(pod *corev1.Pod) bool {
	for _, c := range pod.Spec.InitContainers {
		if !o.finished[c.Name] || exitCode(o.statuses[c.Name]) != 0 {
			return false
		}
	}
	return true
}

func exitCode(s corev1.ContainerStatus) int32 {
	if s.State.Terminated == nil {
		return 0
	}
	return s.State.Terminated.ExitCode
}

// phase is the pod's phase (pod lifecycle, "Pod phase").
func (o observed) phase(pod *corev1.Pod) corev1.PodPhase {
	for _, c := range pod.Spec.InitContainers {
		if o.finished[c.Name] && exitCode(o.statuses[c.Name]) != 0 {
			return corev1.PodFailed
		}
	}
	if !o.initialized(pod) {
		return corev1.PodPending
	}
	ran, finished, failed := false, 0, false
	for _, c := range pod.Spec.Containers {
		s := o.statuses[c.Name]
		ran = ran || s.State.Waiting == nil || s.LastTerminationState.Terminated != nil
		if o.finished[c.Name] {
			finished++
			failed = failed || exitCode(s) != 0
		}
	}
	switch {
	case finished == len(pod.Spec.Containers) && failed:
		return corev1.PodFailed
	case finished == len(pod.Spec.Containers):
		return corev1.PodSucceeded
	case ran:
		return corev1.PodRunning
	default:
		return corev1.PodPending
	}
}

// podStatus is the status to write. Conditions that did not change keep the time
// of their last transition; those of other writers are not named.
func podStatus(pod *corev1.Pod, o observed, now metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{
		Phase:  o.phase(pod),
		HostIP: address, HostIPs: []corev1.HostIP{{IP: address}},
		PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		StartTime: &o.started,
	}
	for _, c := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, o.statuses[c.Name])
	}
	var unready []string
	for _, c := range pod.Spec.Containers {
		s := o.statuses[c.Name]
		status.ContainerStatuses = append(status.ContainerStatuses, s)
		if !s.Ready {
			unready = append(unready, c.Name)
		}
	}
	reason, message := "", ""
	switch {
	case status.Phase == corev1.PodSucceeded:
		reason = "PodCompleted"
	case len(unready) > 0:
		reason, message = "ContainersNotReady", "containers with unready status: ["+strings.Join(unready, " ")+"]"
	}
	ready := len(unready) == 0
	add := func(kind corev1.PodConditionType, is bool, reason, message string) {
		status.Conditions = append(status.Conditions, condition(pod, kind, is, reason, message, now))
	}
	if o.initialized(pod) {
		add(corev1.PodInitialized, true, "", "")
	} else {
		add(corev1.PodInitialized, false, "ContainersNotInitialized", "init containers have not succeeded yet")
	}
	add(corev1.ContainersReady, ready, reason, message)
	add(corev1.PodReady, ready, reason, message)
	return status
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType, is bool, reason, message string, now metav1.Time) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: now}
	if is {
		c.Status = corev1.ConditionTrue
	}
	for _, old := range pod.Status.Conditions {
		if old.Type == kind && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}
