package sandbox

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
			config, err := shippedSchedulerConfig("/some/kubeconfig", tc.alone)
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
