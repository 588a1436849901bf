package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/host/process"
	"github.com/berth-storage/berth/internal/sandbox"
)

// readyLine is the last line that a supervisor writes to who started it.
const readyLine = "\x00ready"

// superviseDescriptor is where the supervisor finds the pipe to who started it.
const superviseDescriptor = 3

func newUpCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster and leave it running",
		Example: `  berth-sandbox up
  berth-sandbox up --nodes 5 --zones 3 --pool-size 4Gi
  berth-sandbox up --scheduler extender`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return up(cmd.Context(), o, cmd.OutOrStdout()) },
	}
	o.addFlags(cmd.Flags())
	return cmd
}

// up starts the supervisor in a session of its own and shows what it says until
// the cluster is ready. When ctx ends, the supervisor is ended and waited for.
func up(ctx context.Context, o options, out io.Writer) error {
	if _, err := o.sandbox(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return sandbox.ErrNotRoot
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the running program: %w", err)
	}
	// The supervisor runs in another folder.
	if o.dataDir, err = sandbox.CleanDataDir(o.dataDir); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe to the supervisor: %w", err)
	}
	defer r.Close()
	supervisor, err := process.Start(process.Spec{
		Name: "supervisor", Path: self, Args: append([]string{"supervise"}, o.args()...),
		Dir: "/", Files: []*os.File{w}, Detached: true,
	})
	w.Close()
	if err != nil {
		return err
	}
	stopForwarding := context.AfterFunc(ctx, func() {
		fmt.Fprintln(out, "Stopping, and cleaning up …")
		// A supervisor that is gone already has nothing to be told.
		_ = supervisor.Signal(syscall.SIGTERM)
	})
	defer stopForwarding()
	if ready := relay(r, out); !ready {
		<-supervisor.Done()
		if ctx.Err() != nil {
			return interrupted(o.dataDir)
		}
		return errors.New("the sandbox was not started")
	}
	return printHowTo(out, o)
}

// relay copies the supervisor's lines to out, until it says that it is ready
// (true) or ends (false).
func relay(r io.Reader, out io.Writer) bool {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if lines.Text() == readyLine {
			return true
		}
		fmt.Fprintln(out, lines.Text())
	}
	return false
}

func printHowTo(out io.Writer, o options) error {
	state, err := sandbox.ReadState(o.dataDir)
	if err != nil {
		return err
	}
	self := os.Args[0]
	if o.dataDir != sandbox.DefaultDataDir {
		self = envDataDir + "=" + state.DataDir + " " + self
	}
	example := "example"
	if o.scheduler != schedulerPlugin {
		example += " --scheduler " + o.scheduler
	}
	fmt.Fprintf(out, `
The sandbox runs. For kubectl and other clients:

  export KUBECONFIG=%s

Three commands to try:

  %[2]s %[3]s | %[2]s kubectl apply -f -
  %[2]s kubectl get pods,pvc,pv -o wide
  %[2]s logs notes-0

Pods need a command and no image; "kubectl exec" and "kubectl logs" need a
kubelet, which these nodes do not have. It ends with: %[2]s down
`, state.Kubeconfig, self, example)
	return nil
}

func newSuperviseCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:    "supervise",
		Short:  "Run a cluster until a signal comes (started by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return supervise(cmd.Context(), o) },
	}
	o.addFlags(cmd.Flags())
	return cmd
}

// supervise runs a cluster and tells the pipe how it goes. Whoever holds the
// pipe's other end may be gone: that changes nothing.
func supervise(ctx context.Context, o options) error {
	signal.Ignore(syscall.SIGHUP)
	pipe := os.NewFile(superviseDescriptor, "progress")
	so, err := o.sandbox()
	if err != nil {
		fmt.Fprintln(pipe, "berth-sandbox:", err)
		return err
	}
	so.KeepRunning = true
	so.Progress = printer(pipe)
	cluster, err := sandbox.Start(ctx, so)
	if err != nil {
		if ctx.Err() == nil {
			fmt.Fprintln(pipe, "berth-sandbox:", err)
		}
		return err
	}
	if err := logToFile(cluster.SupervisorLog()); err != nil {
		return errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
	}
	fmt.Fprintln(pipe, readyLine)
	pipe.Close()
	<-ctx.Done()
	return cluster.Stop(context.WithoutCancel(ctx))
}

// logToFile sends the supervisor's own log to a file; it has no terminal.
func logToFile(path string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the supervisor's log: %w", err)
	}
	klog.LogToStderr(false)
	klog.SetOutput(f)
	return nil
}
