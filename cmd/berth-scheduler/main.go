// berth-scheduler is kube-scheduler with the plugin BerthVolumes. It takes
// kube-scheduler's flags and configuration; see manifests/base/scheduler-config.yaml.
// Beside it, the replica that holds the Lease berth-cluster does the work of
// controller/cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/compatibility"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-storage/berth/internal/clusterwork"
	"github.com/berth-storage/berth/internal/daemon"
	"github.com/berth-storage/berth/internal/program"
)

func main() { os.Exit(daemon.Execute(command(options.NewOptions(), clusterwork.New()))) }

// command is kube-scheduler's command with the flags of the cluster-scoped work.
func command(opts *options.Options, beside *clusterwork.Work) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "berth-scheduler",
		Short: "Places pods by where their volumes can live",
		Long: `berth-scheduler is kube-scheduler with the plugin BerthVolumes, which places
pods by where their volumes can live. It takes kube-scheduler's flags and its
configuration. Beside that, one replica assigns claims of classes with immediate
binding to nodes.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if err := opts.ComponentGlobalsRegistry.Set(); err != nil {
				return fmt.Errorf("--feature-gates: %w", err)
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			if err := check(opts, beside); err != nil {
				return err
			}
			gates := opts.ComponentGlobalsRegistry.FeatureGateFor(compatibility.DefaultKubeComponent)
			if err := logsapi.ValidateAndApply(opts.Logs, gates); err != nil {
				return fmt.Errorf("setting up logs: %w", err)
			}
			ctrl.SetLogger(klog.Background())
			ctx, stop := program.UntilSignal(context.Background(), os.Exit)
			defer stop()
			return daemon.Failed(run(ctx, opts, beside))
		},
	}
	beside.AddFlags(opts.Flags.FlagSet("berth"),
		"The Lease has the durations of the scheduler's own leader election (--leader-elect-lease-duration, -renew-deadline, -retry-period, or leaderElection in --config).")
	daemon.Finish(cmd, *opts.Flags)
	return cmd
}

// check looks at all flags; the configuration file is read, and judged, when the
// scheduler is made.
func check(opts *options.Options, beside *clusterwork.Work) error {
	var p daemon.Problems
	beside.Validate(&p)
	defaults, err := latest.Default()
	if err != nil {
		return fmt.Errorf("making kube-scheduler's default configuration: %w", err)
	}
	opts.ComponentConfig = defaults
	return errors.Join(append([]error{p.Err()}, opts.Validate()...)...)
}
