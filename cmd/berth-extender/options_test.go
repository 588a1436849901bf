package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-storage/berth/internal/daemon"
)

// parse reads flags as the command does.
func parse(t *testing.T, args ...string) (*options, error) {
	t.Helper()
	o := newOptions()
	var sets cliflag.NamedFlagSets
	o.addFlags(&sets)
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, fs := range sets.FlagSets {
		all.AddFlagSet(fs)
	}
	if err := all.Parse(args); err != nil {
		t.Fatal(err)
	}
	var p daemon.Problems
	o.validate(&p)
	return o, p.Err()
}

func TestValidate(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const open = "--serve-address=:10269"
	certs := []string{"--tls-cert-file=c", "--tls-private-key-file=k"}
	cases := map[string]struct {
		reason string
		args   []string
		want   []string
	}{
		"defaults":           {"a sidecar needs nothing", nil, nil},
		"loopback v6":        {"as safe as the other", []string{"--serve-address=[::1]:0"}, nil},
		"localhost":          {"as safe", []string{"--serve-address=localhost:0"}, nil},
		"open":               {"says all that is missing", []string{open}, []string{"--tls-cert-file: missing", "--client-ca-file: missing", "--token-file too"}},
		"open, no callers":   {"TLS alone admits everybody", append(certs, open), []string{"--client-ca-file: missing"}},
		"open, plain token":  {"a token in clear text is everybody's", []string{"--serve-address=0.0.0.0:1", "--token-file=t"}, []string{"--tls-cert-file: missing"}},
		"open, token":        {"secured", append(certs, open, "--token-file=t"), nil},
		"open, certificates": {"secured", append(certs, open, "--client-ca-file=ca"), nil},
		"another host":       {"is not the loopback", []string{"--serve-address=node-1:10269"}, []string{"--tls-cert-file: missing"}},
		"every name":         {"a cluster's CA signs kubelets too", append(certs, open, "--client-ca-file=ca", "--client-names="), []string{"--client-names: none"}},
		"certificate alone":  {"half a pair", []string{"--tls-cert-file=c"}, []string{"--tls-private-key-file belong together"}},
		"CA without TLS":     {"nobody would ask for a certificate", []string{"--client-ca-file=ca"}, []string{"--client-ca-file: client certificates need TLS"}},
		"no address":         {"names the value and an example", []string{"--serve-address=10269"}, []string{`"10269"`, "127.0.0.1:10269"}},
		"no port":            {"names are not looked up", []string{"--serve-address=127.0.0.1:http"}, []string{"--serve-address"}},
		"lease":              {"as kubectl shows it", []string{"--leader-lease=kube-system/kube-scheduler"}, nil},
		"half a lease":       {"names the value and an example", []string{"--leader-lease=kube-scheduler"}, []string{`"kube-scheduler"`, "kube-system/kube-scheduler"}},
		"lease of a lease":   {"one slash", []string{"--leader-lease=a/b/c"}, []string{"--leader-lease"}},
		"scheduler":          {"pods could not name it", []string{"--scheduler-name=My Scheduler"}, []string{`--scheduler-name: "My Scheduler"`}},
		"patience":           {"it would be told at once, always", []string{"--uncalled-after=0"}, []string{"--uncalled-after: 0s"}},
		"args":               {"the plugin's fields", []string{"--args-file=" + file("args", "bindTimeoutSeconds: 5\n")}, nil},
		"unknown field":      {"names file and field", []string{"--args-file=" + file("typo", "bindTimeoutSecond: 5\n")}, []string{"--args-file: " + dir, "bindTimeoutSecond"}},
		"bad value":          {"names file and field", []string{"--args-file=" + file("bad", "bindTimeoutSeconds: -1\n")}, []string{"--args-file: " + dir, "bindTimeoutSeconds"}},
		"no file":            {"names it", []string{"--args-file=" + filepath.Join(dir, "none")}, []string{"none"}},
		"cluster work":       {"judged with the rest", []string{"--cluster-lease-namespace=A B", "--leader-lease=x"}, []string{"--cluster-lease-namespace", "--leader-lease"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tc.args...)
			if tc.want == nil && err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: want %q in %v", tc.reason, want, err)
				}
			}
		})
	}
	o, err := parse(t)
	if err != nil || o.args.BindTimeout() != 20*time.Second || len(o.serve.callers().Names) > 0 {
		t.Errorf("defaults: %v, %s, %v", err, o.args.BindTimeout(), o.serve.callers())
	}
	if o, _ = parse(t, "--args-file="+filepath.Join(dir, "args"), "--client-ca-file=ca"); o.args.BindTimeout() != 5*time.Second || len(o.serve.callers().Names) != 1 {
		t.Errorf("given: %s, %v", o.args.BindTimeout(), o.serve.callers())
	}
}
