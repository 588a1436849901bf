package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/berth-storage/berth/host/process"
	"github.com/berth-storage/berth/test/bench/rig"
)

// run runs the workloads that match, both schedulers in turn, and prints their
// lines.
func run(ctx context.Context, o options, pattern *regexp.Regexp) (err error) {
	if err := os.Mkdir(o.workDir, 0o700); err != nil {
		return fmt.Errorf("--work-dir: %w; it is removed at the end, so it must be new", err)
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			logf("what the runs wrote is kept in %s", o.workDir)
			return
		}
		err = errors.Join(err, os.RemoveAll(o.workDir)) //nolint:forbidigo // this run made it, and nothing mounts below
	}()
	if err := writeEtcd(o); err != nil {
		return err
	}
	for _, w := range cases() {
		if !pattern.MatchString(w.name) {
			continue
		}
		figures, err := alternate(ctx, o, w)
		if err != nil {
			return err
		}
		if err := line(w, figures[rig.Ours], figures[rig.Theirs]).Print(os.Stdout); err != nil {
			return err
		}
	}
	return nil
}

// alternate runs one workload with each scheduler so many times.
func alternate(ctx context.Context, o options, w workload) (map[rig.Scheduler][]float64, error) {
	figures := map[rig.Scheduler][]float64{}
	for i := range o.runs {
		// The order changes too, so that neither is always the second.
		order := []rig.Scheduler{rig.Ours, rig.Theirs}
		if i%2 == 1 {
			order = []rig.Scheduler{rig.Theirs, rig.Ours}
		}
		for _, s := range order {
			figure, err := child(ctx, o, w, s, i)
			if err != nil {
				return nil, fmt.Errorf("%s with %s: %w", w.name, s, err)
			}
			logf("%s, run %d: %s %s pods/s", w.name, i+1, s, rig.Figure(figure))
			figures[s] = append(figures[s], figure)
		}
	}
	return figures, nil
}

func line(w workload, ours, theirs []float64) rig.Line {
	return rig.Line{
		Name: "perf-" + w.name, Ours: rig.Median(ours), Theirs: rig.Median(theirs),
		Ratio: rig.Median(ours) / rig.Median(theirs),
		More:  fmt.Sprintf("spread=%.0f%%/%.0f%%", 100*rig.Spread(ours), 100*rig.Spread(theirs)),
	}
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+"  "+format+"\n", args...)
}

// writeEtcd writes a program named etcd, which scheduler_perf looks for in PATH.
func writeEtcd(o options) error {
	bin := filepath.Join(o.workDir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return fmt.Errorf("making a folder for etcd: %w", err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' etcd \"$@\"\n", filepath.Join(o.binDir, "berth-sandbox"))
	if err := os.WriteFile(filepath.Join(bin, "etcd"), []byte(script), 0o700); err != nil { //nolint:gosec // a program
		return fmt.Errorf("writing etcd: %w", err)
	}
	return nil
}

// tempPattern is of a run's folder for temporary files: short, and not below the
// run's own, because scheduler_perf puts etcd's socket below it.
const tempPattern = "t*"

// socketMax is how many bytes the path of a unix socket may have (unix(7)), and
// socketBelow is where that socket lies below the work folder, at its longest.
const (
	socketMax   = 107
	socketBelow = "/t0000000000/integration_test_etcd_data0000000000/etcd.sock"
)

// child runs a workload once, in a process and a folder of its own.
func child(ctx context.Context, o options, w workload, s rig.Scheduler, i int) (float64, error) {
	dir := filepath.Join(o.workDir, fmt.Sprintf("%s-%s-%d", w.name, s, i+1))
	results := filepath.Join(dir, "results")
	if err := os.MkdirAll(results, 0o700); err != nil {
		return 0, fmt.Errorf("making the folder of a run: %w", err)
	}
	temp, err := os.MkdirTemp(o.workDir, tempPattern)
	if err != nil {
		return 0, fmt.Errorf("making the folder of a run: %w", err)
	}
	config, err := configure(dir, w, s)
	if err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("finding the running program: %w", err)
	}
	marker := "BERTH_BENCH_PERF=" + dir
	p, err := process.Start(process.Spec{
		Name: "scheduler_perf", Path: self, Args: []string{runCommand, config, results}, Marker: marker,
		Env: append(os.Environ(), "PATH="+filepath.Join(o.workDir, "bin")+":"+os.Getenv("PATH"), "TMPDIR="+temp, "KUBE_CACHE_MUTATION_DETECTOR=false"),
		Log: filepath.Join(dir, "log"),
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("it was not done after %s (--timeout)", o.timeout))
	defer cancel()
	select {
	case <-p.Done():
	case <-ctx.Done():
		// etcd is a child of it, and known by the same marker.
		_, kill := process.KillMarked(context.WithoutCancel(ctx), marker)
		return 0, errors.Join(context.Cause(ctx), p.Kill(), kill)
	}
	if _, err := process.KillMarked(ctx, marker); err != nil {
		return 0, err
	}
	figure, err := readThroughput(results)
	if err != nil {
		return 0, fmt.Errorf("%w (%s; log %s)", err, p.Exit(), p.Log())
	}
	return figure, nil
}
