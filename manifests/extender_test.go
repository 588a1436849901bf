package manifests_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/manifests"
	exts "github.com/berth-storage/berth/scheduler/extender"
)

// bindingPost is what a bind may take beyond its budget (scheduler/extender, postTimeout).
const bindingPost = 5 * time.Second

func schedulerConfig(t *testing.T) schedulerv1.KubeSchedulerConfiguration {
	t.Helper()
	var config schedulerv1.KubeSchedulerConfiguration
	for _, m := range of[*corev1.ConfigMap](render(t, extender)) {
		if text, ok := m.Data["scheduler-config.yaml"]; ok {
			if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(config.Extenders) != 1 || len(config.Profiles) != 1 {
		t.Fatalf("want one extender and one profile, got %d and %d", len(config.Extenders), len(config.Profiles))
	}
	return config
}

func sidecar(t *testing.T, d *appsv1.Deployment) corev1.Container {
	t.Helper()
	spec := d.Spec.Template.Spec
	if len(spec.InitContainers) != 1 || len(spec.Containers) != 1 {
		t.Fatalf("want a sidecar and a container, got %d and %d", len(spec.InitContainers), len(spec.Containers))
	}
	return spec.InitContainers[0]
}

// flagOf is the value of a flag of the container.
func flagOf(t *testing.T, c corev1.Container, flag string) string {
	t.Helper()
	for _, a := range c.Args {
		if value, ok := strings.CutPrefix(a, flag+"="); ok {
			return value
		}
	}
	t.Fatalf("container %s has no %s", c.Name, flag)
	return ""
}

// TestSidecar: the scheduler does not start before the extender that it asks, and
// one that waits for a scheduler's first request must not keep it from starting.
func TestSidecar(t *testing.T) {
	c := sidecar(t, scheduler(t, render(t, extender)))
	if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Errorf("restartPolicy %v: an init container that never ends would hold up the scheduler for ever", c.RestartPolicy)
	}
	if c.StartupProbe == nil || c.StartupProbe.HTTPGet == nil || c.StartupProbe.HTTPGet.Path != "/readyz/caches" {
		t.Errorf("startup probe %v, want /readyz/caches: all of /readyz waits for the scheduler", c.StartupProbe)
	}
	if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet == nil || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("readiness probe %v, want /readyz", c.ReadinessProbe)
	}
}

// TestExtenderMeetsScheduler: what the sidecar is told and what kube-scheduler is
// told are the same.
func TestExtenderMeetsScheduler(t *testing.T) {
	config, c := schedulerConfig(t), sidecar(t, scheduler(t, render(t, extender)))
	e := config.Extenders[0]
	for flag, want := range map[string]string{
		"--serve-address":  strings.TrimPrefix(e.URLPrefix, "http://"),
		"--scheduler-name": *config.Profiles[0].SchedulerName,
		"--leader-lease":   config.LeaderElection.ResourceNamespace + "/" + config.LeaderElection.ResourceName,
	} {
		if got := flagOf(t, c, flag); got != want {
			t.Errorf("%s=%s, and kube-scheduler is configured for %s", flag, got, want)
		}
	}
	if !*config.LeaderElection.LeaderElect {
		t.Error("without a leader both extenders would promise the same bytes")
	}
	if !strings.HasPrefix(e.URLPrefix, "http://127.0.0.1:") || e.EnableHTTPS {
		t.Errorf("%s: in one pod, and nobody else's to ask", e.URLPrefix)
	}
}

// TestKubeadm: the example for the cluster's own scheduler starts as it stands, with
// rights that there are.
func TestKubeadm(t *testing.T) {
	var config schedulerv1.KubeSchedulerConfiguration
	decodeExample(t, "scheduler-config.yaml", &config)
	var pod corev1.Pod
	decodeExample(t, "berth-extender.yaml", &pod)
	c := pod.Spec.Containers[0]
	for flag, want := range map[string]string{
		"--serve-address":  strings.TrimPrefix(config.Extenders[0].URLPrefix, "http://"),
		"--scheduler-name": *config.Profiles[0].SchedulerName,
		"--leader-lease":   "kube-system/kube-scheduler",
		"--kubeconfig":     config.ClientConnection.Kubeconfig,
	} {
		if got := flagOf(t, c, flag); got != want {
			t.Errorf("%s=%s, want %s", flag, got, want)
		}
	}
	if *config.Profiles[0].SchedulerName != corev1.DefaultSchedulerName || !pod.Spec.HostNetwork {
		t.Error("it is for pods that name no scheduler, and meets kube-scheduler on the host's loopback")
	}
	if want := agent(t, render(t, extender)).Spec.Template.Spec.Containers[0].Image; c.Image != want {
		t.Errorf("image %s, want %s", c.Image, want)
	}
	roles := rolesOf(render(t, extender))
	raw, err := manifests.FS.ReadFile("examples/kubeadm/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(raw), "\n---\n") {
		var b rbacv1.RoleBinding // a ClusterRoleBinding has the same fields
		if err := yaml.UnmarshalStrict([]byte(part), &b); err != nil {
			t.Fatal(err)
		}
		if !roles[b.RoleRef.Kind+" "+b.Namespace+"/"+b.RoleRef.Name] || b.Subjects[0].Name != "system:kube-scheduler" {
			t.Errorf("%s binds %s %s to %s", b.Kind, b.RoleRef.Kind, b.RoleRef.Name, b.Subjects[0].Name)
		}
	}
}

func decodeExample(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := manifests.FS.ReadFile("examples/kubeadm/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(raw, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// rolesOf are the roles among the objects, as kind, namespace and name.
func rolesOf(objects []runtime.Object) map[string]bool {
	out := map[string]bool{}
	for _, r := range of[*rbacv1.ClusterRole](objects) {
		out["ClusterRole /"+r.Name] = true
	}
	for _, r := range of[*rbacv1.Role](objects) {
		out["Role "+r.Namespace+"/"+r.Name] = true
	}
	return out
}

// TestExtenderEntry holds each field to what the extender relies on.
func TestExtenderEntry(t *testing.T) {
	config := schedulerConfig(t)
	e := config.Extenders[0]
	for what, ok := range map[string]bool{
		"filterVerb filter":         e.FilterVerb == "filter",
		"prioritizeVerb prioritize": e.PrioritizeVerb == "prioritize" && e.Weight >= 1,
		"preemptVerb preempt":       e.PreemptVerb == "preempt",
		"bindVerb bind":             e.BindVerb == "bind",
		"nodeCacheCapable true":     e.NodeCacheCapable,
		"ignorable false":           !e.Ignorable,
		"managedResources none":     len(e.ManagedResources) == 0,
		"percentageOfNodesToScore":  config.PercentageOfNodesToScore != nil && *config.PercentageOfNodesToScore == 100,
	} {
		if !ok {
			t.Errorf("want %s; the file says why", what)
		}
	}
	if bind := exts.BindTimeoutSeconds*time.Second + bindingPost; e.HTTPTimeout.Duration <= bind {
		t.Errorf("httpTimeout %s: a bind may take %s", e.HTTPTimeout.Duration, bind)
	}
	var disabled []string
	for _, p := range config.Profiles[0].Plugins.MultiPoint.Disabled {
		disabled = append(disabled, p.Name)
	}
	slices.Sort(disabled)
	if want := []string{"NodeVolumeLimits", "VolumeBinding"}; !slices.Equal(disabled, want) {
		t.Errorf("disabled %v, want %v", disabled, want)
	}
}
