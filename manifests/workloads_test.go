package manifests_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-storage/berth/volume"
)

func agent(t *testing.T, objects []runtime.Object) *appsv1.DaemonSet {
	t.Helper()
	sets := of[*appsv1.DaemonSet](objects)
	if len(sets) != 1 {
		t.Fatalf("want one DaemonSet, got %d", len(sets))
	}
	return sets[0]
}

// scheduler is the only Deployment: the extender takes the place of berth-scheduler.
func scheduler(t *testing.T, objects []runtime.Object) *appsv1.Deployment {
	t.Helper()
	deployments := of[*appsv1.Deployment](objects)
	if len(deployments) != 1 {
		t.Fatalf("want one Deployment, got %d", len(deployments))
	}
	return deployments[0]
}

func selectorOf(t *testing.T, s *metav1.LabelSelector) labels.Selector {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

// TestOneImage: what IMAGE= replaces is the image of every container, but for the
// stock kube-scheduler, which is that of the Kubernetes that Berth is built with.
func TestOneImage(t *testing.T) { eachFolder(t, checkOneImage) }

func checkOneImage(t *testing.T, objects []runtime.Object) {
	t.Helper()
	want := agent(t, objects).Spec.Template.Spec.Containers[0].Image
	if name, tag, ok := strings.Cut(want, ":"); !ok || name != "berth" || tag == "" {
		t.Errorf("image %q: kustomization.yaml gives the tag", want)
	}
	stock := "registry.k8s.io/kube-scheduler:" + kubernetesVersion(t)
	for _, spec := range []corev1.PodSpec{agent(t, objects).Spec.Template.Spec, scheduler(t, objects).Spec.Template.Spec} {
		for _, c := range append(spec.InitContainers, spec.Containers...) {
			expected := want
			if c.Command[0] == "kube-scheduler" {
				expected = stock
			}
			if c.Image != expected {
				t.Errorf("container %s runs %s, want %s", c.Name, c.Image, expected)
			}
		}
	}
}

// kubernetesVersion is that in go.mod.
func kubernetesVersion(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v\S+)$`).FindSubmatch(raw)
	if found == nil {
		t.Fatal("go.mod does not name the version of k8s.io/kubernetes")
	}
	return string(found[1])
}

// TestAgentMounts: without these the kubelet does not see what the agent mounts,
// or the agent forgets what it did.
func TestAgentMounts(t *testing.T) {
	spec := agent(t, render(t, base)).Spec.Template.Spec
	paths := make(map[string]string)
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			paths[v.Name] = v.HostPath.Path
		}
	}
	want := map[string]corev1.MountPropagationMode{
		"/var/lib/kubelet/plugins":          corev1.MountPropagationBidirectional,
		"/var/lib/kubelet/pods":             corev1.MountPropagationBidirectional,
		"/var/lib/kubelet/plugins_registry": "",
		"/var/lib/kubelet/berth":            "",
		"/var/lib/berth/pool":               corev1.MountPropagationHostToContainer,
		"/dev":                              "",
	}
	for _, m := range spec.Containers[0].VolumeMounts {
		if m.MountPath == "/host" {
			if !m.ReadOnly || paths[m.Name] != "/" {
				t.Errorf("the host's root is seen read-only at /host: %+v", m)
			}
			continue
		}
		propagation, known := want[m.MountPath]
		if !known {
			t.Errorf("%s is not needed", m.MountPath)
			continue
		}
		if paths[m.Name] != m.MountPath {
			t.Errorf("%s is %s on the host: the kubelet's paths must hold inside", m.MountPath, paths[m.Name])
		}
		if got := m.MountPropagation; propagation == "" && got != nil || propagation != "" && (got == nil || *got != propagation) {
			t.Errorf("%s: propagation %v, want %q", m.MountPath, got, propagation)
		}
		delete(want, m.MountPath)
	}
	for path := range want {
		t.Errorf("%s is not mounted", path)
	}
}

// TestSchedulerPods: the Deployment, its disruption budget and its configuration
// belong together.
func TestSchedulerPods(t *testing.T) { eachFolder(t, checkSchedulerPods) }

func checkSchedulerPods(t *testing.T, objects []runtime.Object) {
	t.Helper()
	d := scheduler(t, objects)
	pod := labels.Set(d.Spec.Template.Labels)
	if !selectorOf(t, d.Spec.Selector).Matches(pod) {
		t.Error("the Deployment does not select its own pods")
	}
	if *d.Spec.Replicas < 2 {
		t.Errorf("%d replicas: one that is lost leaves none", *d.Spec.Replicas)
	}
	if got := d.Spec.Template.Spec.SchedulerName; got != corev1.DefaultSchedulerName {
		t.Errorf("its own pods are placed by %q: a scheduler that waits for itself never starts", got)
	}
	budgets := of[*policyv1.PodDisruptionBudget](objects)
	if len(budgets) != 1 || !selectorOf(t, budgets[0].Spec.Selector).Matches(pod) {
		t.Errorf("want one PodDisruptionBudget of the scheduler's pods, got %v", budgets)
	}
	mounted := ""
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap != nil {
			mounted = v.ConfigMap.Name
		}
	}
	found := false
	for _, m := range of[*corev1.ConfigMap](objects) {
		if m.Name == mounted && m.Namespace == d.Namespace {
			_, found = m.Data["scheduler-config.yaml"]
		}
	}
	if !found {
		t.Errorf("the scheduler mounts ConfigMap %q, which has no scheduler-config.yaml", mounted)
	}
}

// TestClaimLabelPolicy: never in the way of a claim, and not restricted, or agents
// do not rely on it.
func TestClaimLabelPolicy(t *testing.T) { eachFolder(t, checkClaimLabelPolicy) }

func checkClaimLabelPolicy(t *testing.T, objects []runtime.Object) {
	t.Helper()
	policies := of[*admissionregistrationv1.MutatingAdmissionPolicy](objects)
	bindings := of[*admissionregistrationv1.MutatingAdmissionPolicyBinding](objects)
	if len(policies) != 1 || len(bindings) != 1 {
		t.Fatalf("want one policy and one binding, got %d and %d", len(policies), len(bindings))
	}
	policy, binding := policies[0], bindings[0]
	if policy.Name != volume.ClaimLabelPolicy || binding.Name != volume.ClaimLabelPolicy || binding.Spec.PolicyName != policy.Name {
		t.Errorf("policy %s, binding %s of %s: agents look for %s", policy.Name, binding.Name, binding.Spec.PolicyName, volume.ClaimLabelPolicy)
	}
	if *policy.Spec.FailurePolicy != admissionregistrationv1.Ignore {
		t.Errorf("failurePolicy %s: what goes wrong here must refuse no claim", *policy.Spec.FailurePolicy)
	}
	if binding.Spec.MatchResources != nil {
		t.Error("the binding is restricted")
	}
	text := policy.Spec.Mutations[0].JSONPatch.Expression + policy.Spec.MatchConditions[0].Expression
	for _, key := range []string{volume.LabelNode, volume.AnnSelectedNode} {
		if !strings.Contains(text, key) {
			t.Errorf("the policy does not name %s", key)
		}
	}
}
