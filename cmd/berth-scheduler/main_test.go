package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/berth-storage/berth/internal/clusterwork"
	"github.com/berth-storage/berth/internal/program"
)

// execute runs the command; what it is given must end it before it starts.
func execute(args ...string) (string, error) {
	cmd := command(options.NewOptions(), clusterwork.New())
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// TestHelp: the flags of the cluster-scoped work stand in the help beside
// kube-scheduler's own, and Berth's version before Kubernetes'.
func TestHelp(t *testing.T) {
	help, err := execute("--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Berth flags:", "--cluster-work", "--cluster-lease-namespace", "Leader election flags:", "--leader-elect ", "--leader-elect-lease-duration",
		"Secure serving flags:", `"json"`, "--version",
	} {
		if !strings.Contains(help, want) {
			t.Errorf("the help lacks %s", want)
		}
	}
	said, err := execute("--version")
	if want := "berth-scheduler version " + program.Version() + " (Kubernetes v"; err != nil || !strings.HasPrefix(said, want) {
		t.Errorf("version %q, %v; want %q first", said, err, want)
	}
}

func TestWrongConfiguration(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparalelism: 3\n"
	if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason string
		args   []string
		want   []string
	}{
		"namespace": {"names the flag", []string{"--cluster-lease-namespace=A B"}, []string{"--cluster-lease-namespace", `"A B"`}},
		"with port": {"ours and Kubernetes' at once", []string{"--cluster-lease-namespace=", "--secure-port=70000"}, []string{"--cluster-lease-namespace", "--secure-port"}},
		"field":     {"a field that the file cannot have", []string{"--config=" + bad}, []string{"paralelism"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := execute(tc.args...)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: want %q in %v", tc.reason, want, err)
				}
			}
		})
	}
}
