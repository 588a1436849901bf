package podruntime

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Shorthands for what a container did.
func terminatedWith(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
}

func runningNow() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

// podOf is a pod with the init containers i0, i1, … and the containers c0, c1, …
// in the given states; a zero state is a container that the object does not know.
func podOf(policy corev1.RestartPolicy, inits, mains []corev1.ContainerState) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}
	pod.Spec.RestartPolicy = policy
	add := func(prefix string, states []corev1.ContainerState, specs *[]corev1.Container, statuses *[]corev1.ContainerStatus) {
		for i, s := range states {
			name := prefix + string(rune('0'+i))
			*specs = append(*specs, corev1.Container{Name: name})
			if s != (corev1.ContainerState{}) {
				*statuses = append(*statuses, corev1.ContainerStatus{Name: name, State: s, Ready: s.Running != nil})
			}
		}
	}
	add("i", inits, &pod.Spec.InitContainers, &pod.Status.InitContainerStatuses)
	add("c", mains, &pod.Spec.Containers, &pod.Status.ContainerStatuses)
	return pod
}

// TestObserve holds what a new runtime makes of a pod that an earlier one ran.
func TestObserve(t *testing.T) {
	type states = []corev1.ContainerState
	cases := map[string]struct {
		reason       string
		pod          *corev1.Pod
		wantFinished []string
		wantPhase    corev1.PodPhase
	}{
		"new":            {"nothing ran yet", podOf(corev1.RestartPolicyAlways, nil, states{{}}), nil, corev1.PodPending},
		"lost, always":   {"it is started again", podOf(corev1.RestartPolicyAlways, nil, states{runningNow()}), nil, corev1.PodRunning},
		"lost, never":    {"it is not, so the pod failed", podOf(corev1.RestartPolicyNever, nil, states{runningNow()}), []string{"c0"}, corev1.PodFailed},
		"lost, failure":  {"being lost is a failure", podOf(corev1.RestartPolicyOnFailure, nil, states{runningNow()}), nil, corev1.PodRunning},
		"done, failure":  {"success is final", podOf(corev1.RestartPolicyOnFailure, nil, states{terminatedWith(0)}), []string{"c0"}, corev1.PodSucceeded},
		"done, always":   {"even success is followed by a restart", podOf(corev1.RestartPolicyAlways, nil, states{terminatedWith(0)}), nil, corev1.PodRunning},
		"failed, never":  {"one failed, one succeeded", podOf(corev1.RestartPolicyNever, nil, states{terminatedWith(1), terminatedWith(0)}), []string{"c0", "c1"}, corev1.PodFailed},
		"one runs":       {"one is done, one never ran", podOf(corev1.RestartPolicyNever, nil, states{terminatedWith(0), {}}), []string{"c0"}, corev1.PodRunning},
		"init done":      {"an init container that succeeded is not run again", podOf(corev1.RestartPolicyAlways, states{terminatedWith(0)}, states{{}}), []string{"i0"}, corev1.PodPending},
		"init lost":      {"it is run again, and the pod waits", podOf(corev1.RestartPolicyAlways, states{runningNow()}, states{{}}), nil, corev1.PodPending},
		"init failed":    {"the whole pod failed", podOf(corev1.RestartPolicyNever, states{terminatedWith(3)}, states{{}}), []string{"i0"}, corev1.PodFailed},
		"init must wait": {"its failure is tried again", podOf(corev1.RestartPolicyOnFailure, states{terminatedWith(3), {}}, states{{}}), nil, corev1.PodPending},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := observe(tc.pod, metav1.Now())
			var finished []string
			for _, c := range allContainers(tc.pod) {
				if o.finished[c.Name] {
					finished = append(finished, c.Name)
				}
				if s := o.statuses[c.Name]; s.State.Running != nil || s.Ready {
					t.Errorf("%s: container %s runs, and no process exists", tc.reason, c.Name)
				}
			}
			if diff := cmp.Diff(tc.wantFinished, finished); diff != "" {
				t.Errorf("%s: finished (-want +got)\n%s", tc.reason, diff)
			}
			if got := o.phase(tc.pod); got != tc.wantPhase {
				t.Errorf("%s: phase %s, want %s", tc.reason, got, tc.wantPhase)
			}
		})
	}
}

// TestConditionsKeepTheirTime holds that only a change moves a condition's time.
func TestConditionsKeepTheirTime(t *testing.T) {
	early, late := metav1.NewTime(time.Unix(1000, 0)), metav1.NewTime(time.Unix(2000, 0))
	pod := podOf(corev1.RestartPolicyAlways, nil, []corev1.ContainerState{{}})
	o := observe(pod, early)
	pod.Status = podStatus(pod, o, early)
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	s := o.statuses["c0"]
	s.State, s.Ready = runningNow(), true
	o.statuses["c0"] = s
	got := podStatus(pod, o, late)
	want := []corev1.PodCondition{
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: early},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: late},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: late},
	}
	if diff := cmp.Diff(want, got.Conditions); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got.Phase != corev1.PodRunning || !got.StartTime.Equal(&early) {
		t.Errorf("phase %s, start %s", got.Phase, got.StartTime)
	}
}

func TestUnsupported(t *testing.T) {
	volume := func(s corev1.VolumeSource) *corev1.Pod {
		pod := podOf(corev1.RestartPolicyAlways, nil, []corev1.ContainerState{{}})
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: s}}
		return pod
	}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}
	sidecar := podOf(corev1.RestartPolicyAlways, []corev1.ContainerState{{}}, []corev1.ContainerState{{}})
	always := corev1.ContainerRestartPolicyAlways
	sidecar.Spec.InitContainers[0].RestartPolicy = &always
	propagating := volume(claim)
	both := corev1.MountPropagationBidirectional
	propagating.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPropagation: &both}}
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		csi    bool
		want   bool
	}{
		"claim":       {"the agent publishes it", volume(claim), true, true},
		"no agent":    {"nobody would", volume(claim), false, false},
		"emptyDir":    {"a folder", volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), false, true},
		"hostPath":    {"left out on purpose", volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), true, false},
		"nfs":         {"no such client", volume(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}), true, false},
		"sidecar":     {"not done", sidecar, true, false},
		"propagation": {"not done", propagating, true, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := unsupported(tc.pod, tc.csi); (got == "") != tc.want {
				t.Errorf("%s: %q", tc.reason, got)
			}
		})
	}
}

// TestStatusPatchClears applies the patch as the API server does: a pod that
// became ready must not go on to say why it was not.
func TestStatusPatchClears(t *testing.T) {
	old := corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady", Message: "containers with unready status: [a]"},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}}}
	raw, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := statusPatch("u", corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}})
	if err != nil {
		t.Fatal(err)
	}
	merged, err := strategicpatch.StrategicMergePatch(raw, patch, corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var got corev1.Pod
	if err := json.Unmarshal(merged, &got); err != nil {
		t.Fatal(err)
	}
	want := []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
	if diff := cmp.Diff(want, got.Status.Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}
