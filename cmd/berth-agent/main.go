// Command berth-agent serves the volumes of one node: the bundled CSI driver,
// its registration, the controllers of the node's own volumes and, standalone,
// the kubelet's side of CSI.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() { os.Exit(cli.Run(command())) }

func command() *cobra.Command {
	opts := newOptions()
	cmd := &cobra.Command{
		Use:   "berth-agent",
		Short: "Serves the volumes of one node",
		Long: `berth-agent serves the volumes of one node: the bundled CSI driver, its
registration, the controllers of the node's own volumes and, with
--mode=standalone, the kubelet's side of CSI for a node without a kubelet.`,
		Version:      version.Get().GitVersion,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			opts.complete()
			if err := opts.validate(); err != nil {
				return fmt.Errorf("configuration:\n%w", err)
			}
			if err := logsapi.ValidateAndApply(opts.logs, nil); err != nil {
				return fmt.Errorf("configuration:\n%w", err)
			}
			ctx := ctrl.SetupSignalHandler()
			logger := klog.Background()
			ctrl.SetLogger(logger)
			return run(klog.NewContext(ctx, logger), opts)
		},
	}
	sets := opts.flags()
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name())
	for _, fs := range sets.FlagSets {
		cmd.Flags().AddFlagSet(fs)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, sets, columns)
	return cmd
}
