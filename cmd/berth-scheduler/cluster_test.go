package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// TestFlags: the flags of the cluster-scoped work stand in the help beside
// kube-scheduler's own, and are parsed with them.
func TestFlags(t *testing.T) {
	w := newClusterWork()
	command := app.NewSchedulerCommand()
	w.addFlags(command)
	var out bytes.Buffer
	command.SetOut(&out)
	if err := command.Help(); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--leader-elect ", "--cluster-work", "--cluster-lease-namespace"} {
		if !strings.Contains(out.String(), flag) {
			t.Errorf("the help lacks %s", flag)
		}
	}
	if err := command.ParseFlags([]string{"--cluster-work=false", "--cluster-lease-namespace=elsewhere"}); err != nil {
		t.Fatal(err)
	}
	if w.enabled || w.namespace != "elsewhere" {
		t.Errorf("parsed %t, %q", w.enabled, w.namespace)
	}
}

// TestOff: without the work the plugin is made as ever, and nothing is waited for.
func TestOff(t *testing.T) {
	w := newClusterWork()
	w.enabled = false
	made := 0
	factory := w.startedBy(func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		made++
		return nil, nil
	})
	if _, err := factory(t.Context(), nil, nil); err != nil || made != 1 {
		t.Errorf("made %d plugins, error %v", made, err)
	}
	w.wait()
}
