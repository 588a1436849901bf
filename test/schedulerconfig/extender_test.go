// Package schedulerconfig_test gives the configurations that are shipped for a stock
// kube-scheduler to kube-scheduler's own code.
package schedulerconfig_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/berth-storage/berth/manifests"
)

// The configurations, by the one profile of each: of the scheduler beside the
// cluster's, and of the cluster's own.
var files = map[string]string{
	"berth-extender":    "extender/scheduler-config.yaml",
	"default-scheduler": "examples/kubeadm/scheduler-config.yaml",
}

// each runs the check on each of them.
func each(t *testing.T, check func(t *testing.T, profile string, c *config.KubeSchedulerConfiguration)) {
	t.Helper()
	for profile, file := range files {
		t.Run(file, func(t *testing.T) { check(t, profile, load(t, file)) })
	}
}

// load reads the file as kube-scheduler does: with its own scheme, which refuses a
// field that it does not know or that stands twice, its defaults and its validation.
func load(t *testing.T, file string) *config.KubeSchedulerConfiguration {
	t.Helper()
	raw, err := manifests.FS.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(raw, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		t.Fatalf("the file is a %T", object)
	}
	c.APIVersion = "kubescheduler.config.k8s.io/v1"
	if err := validation.ValidateKubeSchedulerConfiguration(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// start makes the scheduler that the file describes; it never runs.
func start(t *testing.T, c *config.KubeSchedulerConfiguration) *scheduler.Scheduler {
	t.Helper()
	client := fake.NewClientset()
	s, err := scheduler.New(t.Context(), client, informers.NewSharedInformerFactory(client, 0), nil,
		func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1) },
		scheduler.WithComponentConfigVersion(c.APIVersion), scheduler.WithProfiles(c.Profiles...),
		scheduler.WithExtenders(c.Extenders...), scheduler.WithPercentageOfNodesToScore(c.PercentageOfNodesToScore))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// enabledOf are the names of all plugins that the profile runs, at whatever point.
func enabledOf(t *testing.T, name string, profiles profile.Map) []string {
	t.Helper()
	if len(profiles) != 1 || profiles[name] == nil {
		t.Fatalf("want the profile %s alone: an extender holds for every profile", name)
	}
	var all []string
	points := reflect.ValueOf(profiles[name].ListPlugins()).Elem()
	for i := range points.NumField() {
		point, ok := reflect.TypeAssert[config.PluginSet](points.Field(i))
		if !ok {
			t.Fatalf("field %s of Plugins is no PluginSet", points.Type().Field(i).Name)
		}
		for _, p := range point.Enabled {
			all = append(all, p.Name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestPlugins: what two must not do is done by one, and nothing else is missing.
func TestPlugins(t *testing.T) { each(t, checkPlugins) }

func checkPlugins(t *testing.T, profile string, c *config.KubeSchedulerConfiguration) {
	t.Helper()
	enabled := enabledOf(t, profile, start(t, c).Profiles)
	for name, reason := range map[string]string{
		names.VolumeBinding:    "it would write claims and volumes before the extender binds them",
		names.NodeVolumeLimits: "the extender counts attach limits, with its promises",
	} {
		if slices.Contains(enabled, name) {
			t.Errorf("%s runs: %s", name, reason)
		}
	}
	for name, reason := range map[string]string{
		names.VolumeZone:         "zone labels of old volumes are its alone",
		names.VolumeRestrictions: "ReadWriteOncePod is its alone",
		names.DefaultBinder:      "kube-scheduler does not start without a plugin that binds",
		names.DefaultPreemption:  "pods still preempt for CPU and memory",
		names.NodeResourcesFit:   "all else is as it was",
	} {
		if !slices.Contains(enabled, name) {
			t.Errorf("%s does not run: %s", name, reason)
		}
	}
}

// TestExtender: kube-scheduler asks the extender at each verb, about every pod, and
// does not go on without it.
func TestExtender(t *testing.T) { each(t, checkExtender) }

func checkExtender(t *testing.T, _ string, c *config.KubeSchedulerConfiguration) {
	t.Helper()
	s := start(t, c)
	if len(s.Extenders) != 1 {
		t.Fatalf("want one extender, got %d", len(s.Extenders))
	}
	e := s.Extenders[0]
	for what, ok := range map[string]bool{
		"filters": e.IsFilter(), "prioritizes": e.IsPrioritizer(), "binds": e.IsBinder(), "preempts": e.SupportsPreemption(),
		"cannot be ignored": !e.IsIgnorable(), "asked about nodes by name": c.Extenders[0].NodeCacheCapable,
	} {
		if !ok {
			t.Errorf("want the extender that %s", what)
		}
	}
	if p := c.PercentageOfNodesToScore; p == nil || *p != 100 {
		t.Errorf("percentageOfNodesToScore %v: the extender is asked about a sample of the nodes", p)
	}
	if override := c.Profiles[0].PercentageOfNodesToScore; override != nil {
		t.Errorf("the profile says %d", *override)
	}
}

// TestOneExtender: what the one file explains holds for the other.
func TestOneExtender(t *testing.T) {
	var all [][]config.Extender
	for _, file := range files {
		all = append(all, load(t, file).Extenders)
	}
	if diff := cmp.Diff(all[0], all[1]); diff != "" {
		t.Errorf("the two differ:\n%s", diff)
	}
}
