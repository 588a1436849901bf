package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/manifests"
)

func TestShippedSchedulerConfig(t *testing.T) {
	cases := map[string]struct {
		reason string
		alone  bool
		want   []any
	}{
		"beside the stock scheduler": {"two schedulers of one name would fight over each pod", false, []any{"berth-scheduler"}},
		"alone":                      {"a pod that names no scheduler must not wait for ever", true, []any{"berth-scheduler", "default-scheduler"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			config, err := shippedSchedulerConfig(schedulerConfigFile, "/some/kubeconfig", tc.alone)
			if err != nil {
				t.Fatal(err)
			}
			profiles, ok := config["profiles"].([]any)
			if !ok {
				t.Fatalf("profiles are %v", config["profiles"])
			}
			var names []any
			for _, p := range profiles {
				profile, ok := p.(map[string]any)
				if !ok {
					t.Fatalf("a profile is %v", p)
				}
				names = append(names, profile["schedulerName"])
				if diff := cmp.Diff(profiles[0].(map[string]any)["plugins"], profile["plugins"]); diff != "" {
					t.Errorf("%s: profiles differ in plugins:\n%s", tc.reason, diff)
				}
			}
			if diff := cmp.Diff(tc.want, names); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			want := map[string]any{"kubeconfig": "/some/kubeconfig", "qps": 200, "burst": 400}
			if diff := cmp.Diff(want, config["clientConnection"]); diff != "" {
				t.Errorf("connection: (-want +got)\n%s", diff)
			}
		})
	}
}

// TestShippedExtenderConfig: of what is shipped, the sandbox changes where things
// are, and nothing else.
func TestShippedExtenderConfig(t *testing.T) {
	config, err := shippedExtenderConfig("/some/kubeconfig", "127.0.0.1:1", false)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := manifests.FS.ReadFile(extenderConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	var shipped map[string]any
	if err := yaml.Unmarshal(raw, &shipped); err != nil {
		t.Fatal(err)
	}
	var changed []string
	for path, want := range leaves("", shipped) {
		if diff := cmp.Diff(want, leaves("", config)[path]); diff != "" {
			changed = append(changed, path)
		}
	}
	slices.Sort(changed)
	want := []string{
		".extenders.0.urlPrefix",
		".leaderElection.leaderElect", ".leaderElection.resourceName", ".leaderElection.resourceNamespace",
	}
	if diff := cmp.Diff(want, changed); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// leaves are the values in a tree of YAML that have none below them, by their path.
func leaves(path string, node any) map[string]any {
	out := map[string]any{}
	switch n := node.(type) {
	case map[string]any:
		for key, child := range n {
			maps.Copy(out, leaves(path+"."+key, child))
		}
	case []any:
		for i, child := range n {
			maps.Copy(out, leaves(fmt.Sprintf("%s.%d", path, i), child))
		}
	default:
		out[path] = node
	}
	return out
}
