package main

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/test/bench/rig"
)

// templates are the objects that the workloads are made of, and the workloads.
//
//go:embed config
var templates embed.FS

// workload is one workload of scheduler_perf.
type workload struct {
	// name is that in the line; test that of the test case in config/cases.yaml,
	// which has one workload.
	name, test string
}

// cases are the workloads: those of upstream's volumes/performance-config.yaml
// of 500 nodes, and preemption at as many.
func cases() []workload {
	return []workload{
		{"intreepvs-500", "SchedulingInTreePVs"},
		{"migratedpvs-500", "SchedulingMigratedInTreePVs"},
		{"csipvs-500", "SchedulingCSIPVs"},
		{"preemptionpvs-500", "PreemptionPVs"},
	}
}

// configure writes what one workload with one scheduler needs into dir, and
// returns the file to give to scheduler_perf.
func configure(dir string, w workload, s rig.Scheduler) (string, error) {
	if err := os.CopyFS(dir, templates); err != nil {
		return "", fmt.Errorf("writing the templates: %w", err)
	}
	profile, err := rig.Config(s, "default-scheduler")
	if err != nil {
		return "", err
	}
	// Whoever runs it gives the client.
	scheduler := filepath.Join(dir, "config", "scheduler.yaml")
	if err := writeYAML(scheduler, profile); err != nil {
		return "", err
	}
	raw, err := templates.ReadFile("config/cases.yaml")
	if err != nil {
		return "", fmt.Errorf("reading the workloads: %w", err)
	}
	var all []map[string]any
	if err := yaml.Unmarshal(raw, &all); err != nil {
		return "", fmt.Errorf("reading the workloads: %w", err)
	}
	for _, test := range all {
		if test["name"] == w.test {
			test["schedulerConfigPath"] = "scheduler.yaml"
			path := filepath.Join(dir, "config", "performance-config.yaml")
			return path, writeYAML(path, []any{test})
		}
	}
	return "", fmt.Errorf("config/cases.yaml has no %s", w.test)
}

func writeYAML(path string, value any) error {
	raw, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
