// memory measures the resident memory of berth-scheduler and of a stock
// kube-scheduler in a cluster with many nodes and volumes and nothing to do.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/internal/program"
	"github.com/berth-storage/berth/test/bench/rig"
)

type options struct {
	nodes           int
	quiet, timeout  time.Duration
	dataDir, binDir string
	profiles        string
}

func main() {
	ctx, stop := program.UntilSignal(context.Background(), os.Exit)
	klog.SetLogger(logr.Discard())
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Resident memory of berth-scheduler and of a stock kube-scheduler",
		Long: fmt.Sprintf(`Resident memory of berth-scheduler and of a stock kube-scheduler, one after the
other on one API server with simulated nodes of %d local volumes each, and no
pods. It is read when the scheduler has read the cluster and has used no
processor for --quiet. In MiB; ratio is theirs through ours, peak the most that
either had at any time:

  bench memory-<nodes>x%d ours=… theirs=… ratio=… peak=<ours>/<theirs>`, rig.VolumesPerNode, rig.VolumesPerNode),
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := filepath.Abs(o.binDir)
			if err != nil {
				return fmt.Errorf("--bin-dir: %w", err)
			}
			if o.binDir = dir; o.nodes < 1 {
				return fmt.Errorf("--nodes: %d; give 1 or more", o.nodes)
			}
			return run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.nodes, "nodes", 5000, "number of nodes")
	f.DurationVar(&o.quiet, "quiet", 10*time.Second, "how long a scheduler must have had next to nothing to do")
	f.DurationVar(&o.timeout, "timeout", 3*time.Minute, "how long a scheduler may take to become quiet")
	f.StringVar(&o.dataDir, "data-dir", "/var/lib/berth-bench", "folder of the cluster, removed at the end")
	f.StringVar(&o.binDir, "bin-dir", "bin", "folder of berth-sandbox and berth-scheduler")
	f.StringVar(&o.profiles, "profile", "", "folder for a heap profile of each scheduler")
	return cmd
}

func run(ctx context.Context, o options) (err error) {
	r, err := rig.Start(ctx, rig.Options{DataDir: o.dataDir, BinDir: o.binDir, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	if err := r.World(ctx, rig.Static, o.nodes); err != nil {
		return err
	}
	theirs, err := measure(ctx, r, o, rig.Theirs)
	if err != nil {
		return err
	}
	ours, err := measure(ctx, r, o, rig.Ours)
	if err != nil {
		return err
	}
	return rig.Line{
		Name: fmt.Sprintf("memory-%dx%d", o.nodes, rig.VolumesPerNode),
		Ours: mib(ours.Resident), Theirs: mib(theirs.Resident), Ratio: float64(theirs.Resident) / float64(ours.Resident),
		More: fmt.Sprintf("peak=%s/%s", rig.Figure(mib(ours.Peak)), rig.Figure(mib(theirs.Peak))),
	}.Print(os.Stdout)
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func measure(ctx context.Context, r *rig.Rig, o options, s rig.Scheduler) (rig.Usage, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("%s was not quiet after %s (--timeout)", s, o.timeout))
	defer cancel()
	running, err := r.StartScheduler(s)
	if err != nil {
		return rig.Usage{}, err
	}
	if err := running.AwaitReady(ctx); err != nil {
		return rig.Usage{}, err
	}
	usage, err := awaitQuiet(ctx, running, o.quiet)
	if err != nil {
		return rig.Usage{}, err
	}
	r.Logf("%s: %.0f MiB, at most %.0f", s, mib(usage.Resident), mib(usage.Peak))
	if o.profiles != "" {
		if err := os.MkdirAll(o.profiles, 0o755); err != nil {
			return rig.Usage{}, fmt.Errorf("making the folder of the profiles: %w", err)
		}
		if err := running.Profile(ctx, "heap", filepath.Join(o.profiles, "memory-"+string(s)+".pprof")); err != nil {
			return rig.Usage{}, err
		}
	}
	return usage, r.Stop(ctx, string(s))
}

// idle is the part of one processor that a scheduler without work may use.
const idle = 0.1

// awaitQuiet waits until the scheduler has been idle for so long.
func awaitQuiet(ctx context.Context, running *rig.Running, quiet time.Duration) (rig.Usage, error) {
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	before, err := running.Usage()
	if err != nil {
		return before, err
	}
	for {
		select {
		case <-ctx.Done():
			return before, context.Cause(ctx)
		case <-running.Done():
			return before, running.Err()
		case <-tick.C:
		}
		now, err := running.Usage()
		if err != nil || (now.CPU-before.CPU).Seconds() < idle*quiet.Seconds() {
			return now, err
		}
		before = now
	}
}
