package clusterwork

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	componentconfig "k8s.io/component-base/config"

	"github.com/berth-storage/berth/internal/daemon"
)

func TestFlags(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		want   string
	}{
		"defaults":     {"the namespace of the manifests", nil, ""},
		"no namespace": {"names the flag and the value", []string{"--cluster-lease-namespace=A B"}, `--cluster-lease-namespace: "A B"`},
		"off":          {"a namespace that nobody uses is no mistake", []string{"--cluster-work=false", "--cluster-lease-namespace="}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w, fs, p := New(), pflag.NewFlagSet("", pflag.ContinueOnError), daemon.Problems{}
			w.AddFlags(fs, "")
			if err := fs.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			w.Validate(&p)
			if err := p.Err(); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestOff: without the work nothing is started, and nothing waited for.
func TestOff(t *testing.T) {
	w := New()
	w.enabled = false
	<-w.Start(t.Context(), nil, componentconfig.LeaderElectionConfiguration{})
}
