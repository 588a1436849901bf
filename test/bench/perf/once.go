package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"

	"github.com/berth-storage/berth/scheduler/plugin"
)

// runCommand as first argument makes the program one run: run <configuration>
// <folder for the result>.
const runCommand = "run"

// runOnce runs the workload of a configuration once, and leaves its figures in
// a folder as scheduler_perf writes them.
func runOnce(config, results string) error {
	if err := os.Chdir(filepath.Dir(config)); err != nil {
		return fmt.Errorf("entering the folder of the configuration: %w", err)
	}
	if err := placeFixtures(results); err != nil {
		return err
	}
	testing.Init()
	os.Args = []string{
		os.Args[0], "-test.bench=.", "-test.benchtime=1x", "-test.run=^$",
		"-perf-scheduling-label-filter=", "-data-items-dir=" + results, "-v=0",
	}
	// It also parses the flags.
	if err := perf.InitTests(); err != nil {
		return fmt.Errorf("preparing scheduler_perf: %w", err)
	}
	if !slices.Contains(perf.PluginNames, plugin.Name) {
		perf.PluginNames = append(perf.PluginNames, plugin.Name)
	}
	if flag.NArg() != 0 {
		return errors.New("scheduler_perf left arguments")
	}
	registry := frameworkruntime.Registry{plugin.Name: new(plugin.Factory).New}
	testing.RunBenchmarks(func(string, string) (bool, error) { return true, nil }, []testing.InternalBenchmark{{
		Name: "BenchmarkPerfScheduling",
		F: func(b *testing.B) {
			perf.RunBenchmarkPerfScheduling(b, filepath.Base(config), "volumes", registry)
		},
	}})
	return nil
}

// placeFixtures names a folder for the API server's test certificates. Upstream
// finds its own by the path of its source, which -trimpath takes out of the
// program, and then asks these variables for a folder to look below
// (cmd/kube-apiserver/app/testing, pkgPath).
func placeFixtures(parent string) error {
	const module = "k8s.io/kubernetes"
	info, ok := debug.ReadBuildInfo()
	if !ok || !slices.Contains(info.Settings, debug.BuildSetting{Key: "-trimpath", Value: "true"}) {
		return nil
	}
	at := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == module })
	if at < 0 {
		return fmt.Errorf("the program does not say which version of %s it was built from", module)
	}
	const workspace = "fixtures"
	source := module + "@" + info.Deps[at].Version
	if err := os.MkdirAll(filepath.Join(parent, workspace, source, "cmd/kube-apiserver/app/testing/testdata"), 0o700); err != nil {
		return fmt.Errorf("making a folder for certificates: %w", err)
	}
	return errors.Join(os.Setenv("TEST_SRCDIR", parent), os.Setenv("TEST_WORKSPACE", workspace))
}
