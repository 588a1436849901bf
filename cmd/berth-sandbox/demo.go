package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/internal/sandbox/story"
)

// demoDataDir is not that of up, so that a demo disturbs no cluster.
const demoDataDir = "/var/lib/berth-sandbox-demo"

func newDemoCommand() *cobra.Command {
	o := options{dataDir: demoDataDir, poolSize: "1Gi"}
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Tell the life of claims on a cluster of its own, checking every line",
		Long: `Start a cluster of three nodes, tell on it the life of claims, from those of a
StatefulSet to those whose agent or API server is killed, and end it. Each line is checked against the API server and against the machine
before it is printed; the exit status is 0 only when all of them held and nothing
is left behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return demo(cmd.Context(), o, keep, cmd.OutOrStdout()) },
	}
	cmd.Flags().StringVar(&o.dataDir, "data-dir", o.dataDir, "folder of the demo, removed at the end")
	cmd.Flags().StringVar(&o.binDir, "bin-dir", os.Getenv(envBinDir), "folder of berth-agent, and berth-scheduler or berth-extender; default: that of berth-sandbox [$"+envBinDir+"]")
	addScheduler(cmd.Flags(), &o.scheduler)
	cmd.Flags().BoolVar(&keep, "keep-on-failure", false, "when a check does not hold, leave the cluster running until Ctrl-C")
	return cmd
}

func demo(ctx context.Context, o options, keep bool, out io.Writer) error {
	so, err := o.sandbox()
	if err != nil {
		return err
	}
	so = story.Cluster(so)
	so.Progress = printer(out)
	began := time.Now()
	fmt.Fprintf(out, "Starting a cluster: 3 nodes in 2 zones; pods ask for %s.\n", schedulers[o.scheduler])
	cluster, err := sandbox.Start(ctx, so)
	if err != nil {
		if ctx.Err() != nil {
			return interrupted(so.DataDir)
		}
		return err
	}
	told := story.Run(ctx, cluster, out, began)
	if told != nil && keep && ctx.Err() == nil {
		fmt.Fprintf(out, "\n%v\n\nThe cluster runs until Ctrl-C: export KUBECONFIG=%s\n", told, cluster.Kubeconfig())
		<-ctx.Done()
	}
	fmt.Fprintln(out, "\nCleaning up.")
	if err := cluster.Stop(context.WithoutCancel(ctx)); err != nil {
		return errors.Join(told, fmt.Errorf("cleaning up: %w", err))
	}
	if err := sandbox.Leftovers(cluster.DataDir(), host.New(host.Options{})); err != nil {
		return errors.Join(told, err)
	}
	if ctx.Err() != nil && !keep {
		return errInterrupted
	}
	if told != nil {
		return told
	}
	fmt.Fprintf(out, "%6.1fs  ok  no process, mount, loop device or file of the cluster is left\n\nEvery check held.\n", time.Since(began).Seconds())
	return nil
}

// interrupted says how an interruption ended: clean, or with what is left.
func interrupted(dataDir string) error {
	if err := sandbox.Leftovers(dataDir, host.New(host.Options{})); err != nil {
		return fmt.Errorf("interrupted; %w", err)
	}
	return errInterrupted
}
