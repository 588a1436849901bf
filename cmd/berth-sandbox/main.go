// Command berth-sandbox is a Kubernetes cluster with Berth in it, on one
// machine, from one binary: `berth-sandbox up`, `berth-sandbox down`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-storage/berth/host/container"
	"github.com/berth-storage/berth/internal/program"
	"github.com/berth-storage/berth/internal/sandbox/multicall"
)

func main() {
	if status, ok := becomeProgram(os.Args[1:]); ok {
		os.Exit(status)
	}
	// The programs inside the binary register their flags, --version among them,
	// in the global set, which cobra would add to every command here.
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError)
	// Second thoughts on Ctrl-C: it ends at once, and "down" takes away what is left.
	ctx, stop := program.UntilSignal(context.Background(), os.Exit)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-sandbox:", err)
		os.Exit(1)
	}
}

// becomeProgram makes this process one of the programs inside the binary.
func becomeProgram(args []string) (status int, ok bool) {
	if len(args) == 0 {
		return 0, false
	}
	if args[0] == container.InitCommand {
		return container.Init(), true
	}
	if args[0] == multicall.Kubectl {
		rest, err := pointKubectl(args)
		if err != nil {
			fmt.Fprintln(os.Stderr, "berth-sandbox:", err)
			return 1, true
		}
		args = rest
	}
	return multicall.Run(args)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth-sandbox",
		Short: "A Kubernetes cluster with Berth in it, on this machine",
		Long: `berth-sandbox runs a real etcd, kube-apiserver, kube-controller-manager and
kube-scheduler, and Berth on as many nodes as wanted, as processes of this
machine. No container engine, no images, no network. Pods run as processes on a
throw-away copy of this machine's root filesystem; their volumes are real.

It needs root, since volumes are loop devices and mounts. Everything lies in one
folder, and "down" leaves nothing behind.`,
		Example: `  berth-sandbox up --nodes 3 --zones 2
  berth-sandbox kubectl get nodes
  berth-sandbox logs my-pod --follow
  berth-sandbox down`,
		Version:       program.VersionText(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"cluster", "The cluster:", []*cobra.Command{newUpCommand(), newStatusCommand(), newDownCommand(), newDemoCommand()}},
		{"use", "What runs on it:", []*cobra.Command{newKubeconfigCommand(), newKubectlCommand(), newLogsCommand(), newExampleCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
	root.AddCommand(newSuperviseCommand(), newNodeCommand())
	return root
}

// errInterrupted ends a command that was asked to stop.
var errInterrupted = errors.New("interrupted; everything was cleaned up")
