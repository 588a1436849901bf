// throughput measures how many pods a second the real berth-scheduler and a
// stock kube-scheduler place, each as a process of its own on a real
// kube-apiserver and etcd with simulated nodes; and how many the API server
// allows at most.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/internal/program"
	"github.com/berth-storage/berth/test/bench/rig"
)

// options are the flags.
type options struct {
	nodes         []int
	workloads     []string
	pods          int
	budget        time.Duration
	enough        int
	timeout       time.Duration
	atOnce        int
	pvController  string
	parts         []string
	dataDir       string
	binDir        string
	keepLogs      string
	profiles      string
	profilePeriod time.Duration
}

// Who binds claims and volumes.
const (
	controllerFake = "fake"
	controllerReal = "real"
)

// What a run consists of.
const (
	partOurs    = "ours"
	partTheirs  = "theirs"
	partCeiling = "ceiling"
)

func main() {
	ctx, stop := program.UntilSignal(context.Background(), os.Exit)
	klog.SetLogger(logr.Discard())
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "throughput:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "throughput",
		Short: "Pods a second through berth-scheduler and through a stock kube-scheduler",
		Long: `Pods a second through berth-scheduler and through a stock kube-scheduler, each
on a fresh etcd and kube-apiserver with the same nodes, volumes and pods. All
pods exist before the scheduler starts. The rate is taken from the first to the
last pod that a watch saw placed; the scheduler's own start is not in it. The
stock scheduler gets as long as --budget says, berth-scheduler places all pods.

Volumes are made, and claims bound, by a stand-in within this program that
answers at once (--pv-controller=real: kube-controller-manager's controller
binds, in one thread). ceiling is what the API server and that stand-in allow:
the same writes for as many pods, without a scheduler.

Written to standard output, in pods a second; ratio is ours through theirs, and
for the ceiling how much of it berth-scheduler reaches:

  bench throughput-<workload>-<nodes> ours=… theirs=… ratio=…
  bench throughput-ceiling-<workload>-<nodes> ours=… ceiling=… ratio=…`,
		Example: `  go run ./test/bench/throughput --nodes=1000 --workload=dynamic --pods=500 --budget=30s
  go run ./test/bench/throughput --nodes=5000 --workload=static --parts=ours --profile=/tmp/p`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&o.nodes, "nodes", []int{1000, 5000}, "numbers of nodes")
	f.StringSliceVar(&o.workloads, "workload", []string{string(rig.Dynamic), string(rig.Static)}, "workloads: dynamic (a capacity object a node), static (4 local volumes a node)")
	f.IntVar(&o.pods, "pods", 1000, "pods, each with one claim")
	f.DurationVar(&o.budget, "budget", time.Minute, "how long the stock scheduler is watched")
	f.IntVar(&o.enough, "enough", 100, "the stock scheduler is not watched any longer once it placed so many pods")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long berth-scheduler, or the ceiling, may take for all pods")
	f.IntVar(&o.atOnce, "at-once", 100, "pods under way at once when the ceiling is measured")
	f.StringVar(&o.pvController, "pv-controller", controllerFake, "who binds claims: fake (within this program) or real (kube-controller-manager)")
	f.StringSliceVar(&o.parts, "parts", []string{partTheirs, partCeiling, partOurs}, "what to measure")
	f.StringVar(&o.dataDir, "data-dir", "/var/lib/berth-bench", "folder of the cluster, removed at the end")
	f.StringVar(&o.binDir, "bin-dir", "bin", "folder of berth-sandbox and berth-scheduler")
	f.StringVar(&o.keepLogs, "keep-logs", "", "folder to keep the logs of all processes in")
	f.StringVar(&o.profiles, "profile", "", "folder for a processor profile of each scheduler at work")
	f.DurationVar(&o.profilePeriod, "profile-period", 10*time.Second, "length of the profile")
	return cmd
}

func (o *options) validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	for _, n := range o.nodes {
		if n < 1 {
			bad("nodes", "%d; give 1 or more", n)
		}
		if slices.Contains(o.workloads, string(rig.Static)) && n*rig.VolumesPerNode < o.pods {
			bad("pods", "%d pods are more than the %d volumes of %d nodes", o.pods, n*rig.VolumesPerNode, n)
		}
	}
	for _, w := range o.workloads {
		if !slices.Contains(rig.Workloads(), rig.Workload(w)) {
			bad("workload", "%q; there is dynamic and static", w)
		}
	}
	for _, p := range o.parts {
		if !slices.Contains([]string{partOurs, partTheirs, partCeiling}, p) {
			bad("parts", "%q; there is ours, theirs, ceiling", p)
		}
	}
	if o.pods < 2 || o.enough < 2 {
		bad("pods", "a rate needs two pods, --pods and --enough")
	}
	if o.pvController != controllerFake && o.pvController != controllerReal {
		bad("pv-controller", "%q; there is fake and real", o.pvController)
	}
	dir, err := filepath.Abs(o.binDir)
	if err != nil {
		bad("bin-dir", "%v", err)
	}
	o.binDir = dir
	if o.atOnce < 1 {
		bad("at-once", "%d; give 1 or more", o.atOnce)
	}
	return errors.Join(errs...)
}

func (o *options) has(part string) bool { return slices.Contains(o.parts, part) }

// caseName names one case, as in its line.
func caseName(w rig.Workload, nodes int) string { return fmt.Sprintf("%s-%d", w, nodes) }

// folder is where what belongs to one part of a case goes; empty stays empty.
func folder(base string, parts ...string) string {
	if base == "" {
		return ""
	}
	return filepath.Join(base, strings.Join(parts, "-"))
}
