package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/internal/sandbox"
)

func newDownCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the cluster and leave nothing behind",
		Long: `End the cluster: its processes, mounts, loop devices and files. It also takes
away what a sandbox left that was killed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return sandbox.ErrNotRoot
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Ending the sandbox in %s …\n", dir)
			found, err := sandbox.Remove(cmd.Context(), dir, host.New(host.Options{}))
			if err != nil {
				return err
			}
			if !found {
				fmt.Fprintln(cmd.OutOrStdout(), "There is none.")
				return nil
			}
			fmt.Fprintln(cmd.OutOrStdout(), "Nothing of it is left.")
			return nil
		},
	}
	addDataDir(cmd.Flags(), &dir)
	return cmd
}

func newStatusCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the processes of the cluster, and where their logs are",
		Long:  "Show the processes of the cluster. The exit status is 0 when all of them run.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return status(cmd, dir) },
	}
	addDataDir(cmd.Flags(), &dir)
	return cmd
}

func status(cmd *cobra.Command, dir string) error {
	state, err := sandbox.ReadState(dir)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROCESS\tPID\tSTATE\tLOG")
	healthy := state.Ready && state.Supervisor.Alive()
	fmt.Fprintf(table, "supervisor\t%d\t%s\t%s\n", state.Supervisor.PID, word(state.Supervisor.Alive()), "")
	for _, p := range state.Processes {
		alive := p.ID.Alive()
		healthy = healthy && alive
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", p.Name, p.ID.PID, word(alive), p.Log)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	switch {
	case healthy:
		return nil
	case !state.Supervisor.Alive():
		return errors.New("the sandbox was killed; take away what it left with: berth-sandbox down")
	case !state.Ready:
		return errors.New("the sandbox is still starting, or ending")
	default:
		return errors.New("not every process runs; the logs say why")
	}
}

func word(alive bool) string {
	if alive {
		return "running"
	}
	return "ended"
}

func newKubeconfigCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Print the path of the administrator's kubeconfig",
		Example: `  export KUBECONFIG=$(berth-sandbox kubeconfig)`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := sandbox.ReadState(dir)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), state.Kubeconfig)
			return nil
		},
	}
	addDataDir(cmd.Flags(), &dir)
	return cmd
}
