// perf runs the volume workloads of Kubernetes' own scheduler benchmark,
// scheduler_perf, with berth-scheduler's plugins and with the stock ones in turn.
//
// It is a program, and no test, for two reasons: it links kube-apiserver, which
// `make test` would compile once more for the race detector; and each run has a
// process of its own, so that no run inherits the heap or the goroutines of
// another.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-storage/berth/internal/program"
)

// options are the flags.
type options struct {
	cases   string
	runs    int
	binDir  string
	workDir string
	timeout time.Duration
}

func main() {
	// A run is this program again. Its arguments are those of package testing.
	if len(os.Args) == 4 && os.Args[1] == runCommand {
		if err := runOnce(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "perf:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := program.UntilSignal(context.Background(), os.Exit)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "perf:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "perf",
		Short: "scheduler_perf's volume workloads with both sets of plugins",
		Long: `The volume workloads of Kubernetes' own scheduler benchmark, scheduler_perf, with
berth-scheduler's plugins and with the stock ones in turn, each run in a process
of its own with a fresh etcd. The figure is the median of the runs' averages, in
pods a second (SchedulingThroughput, Average); spread is how far the smallest and
the largest run are apart, as a part of the median, ours/theirs:

  bench perf-<workload> ours=… theirs=… ratio=… spread=…`,
		Example: `  go run ./test/bench/perf --case=csipvs --runs=1`,
		Args:    cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pattern, err := o.validate()
			if err != nil {
				return err
			}
			return run(cmd.Context(), o, pattern)
		},
	}
	names := make([]string, 0, len(cases()))
	for _, c := range cases() {
		names = append(names, c.name)
	}
	f := cmd.Flags()
	f.StringVar(&o.cases, "case", ".", "workloads, as a regular expression: "+strings.Join(names, ", "))
	f.IntVar(&o.runs, "runs", 5, "runs of each workload with each scheduler")
	f.StringVar(&o.binDir, "bin-dir", "bin", "folder of berth-sandbox, which is also etcd")
	f.StringVar(&o.workDir, "work-dir", "/var/lib/berth-bench-perf", "folder for what the runs write; removed at the end, but for the logs of a run that failed")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long one run may take")
	return cmd
}

func (o *options) validate() (*regexp.Regexp, error) {
	var errs []error
	pattern, err := regexp.Compile(o.cases)
	if err != nil {
		errs = append(errs, fmt.Errorf("--case: %w", err))
	}
	if o.runs < 1 {
		errs = append(errs, fmt.Errorf("--runs: %d; give 1 or more", o.runs))
	}
	for _, dir := range []*string{&o.binDir, &o.workDir} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("--bin-dir, --work-dir: %w", err))
		}
		*dir = abs
	}
	if over := len(o.workDir) + len(socketBelow) - socketMax; over > 0 {
		errs = append(errs, fmt.Errorf("--work-dir: %s is %d bytes too long: a unix socket has to lie below it; give a shorter one", o.workDir, over))
	}
	if _, err := os.Stat(filepath.Join(o.binDir, "berth-sandbox")); err != nil {
		errs = append(errs, fmt.Errorf("--bin-dir: %w; `make build-berth-sandbox` builds it", err))
	}
	return pattern, errors.Join(errs...)
}
