// Package daemon is what every daemon of Berth has in common: a command with
// its flags in groups, a check of the whole configuration before anything
// starts, logs, signals and their grace, and one HTTP server that tells health
// and metrics from the first moment to the last.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-storage/berth/internal/program"
)

// Spec says what one daemon is.
type Spec struct {
	// Name is the program's name, as people type it.
	Name string
	// Short and Long describe it in its help.
	Short, Long string
	// Common holds the options that all daemons share, with their defaults.
	Common *Common
	// AddFlags adds the program's own flags, in named groups.
	AddFlags func(*cliflag.NamedFlagSets)
	// Validate adds what is wrong with the program's own options. It runs before
	// anything is started, and may fill in what follows from other options.
	Validate func(*Problems)
	// Run is the program. It ends, with nil, soon after ctx does.
	Run func(ctx context.Context, endpoints *Endpoints) error
}

// Main runs the daemon with the arguments of the process, and returns its exit
// status.
func Main(s Spec) int { return Execute(Command(s)) }

// Execute runs a command with the arguments of the process, and returns its exit
// status: 0 when it was asked to end and did, 1 for everything else.
func Execute(cmd *cobra.Command) int {
	err := cli.RunNoErrOutput(cmd)
	if err == nil {
		return 0
	}
	if failed := new(runError); errors.As(err, &failed) {
		klog.Background().Error(failed.err, "program failed", "program", cmd.Name())
		logs.FlushLogs()
		return 1
	}
	// Nothing ran, and nobody but the person who typed it has to know.
	// Whom it could be told to instead is nobody.
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\nSee %s --help.\n", cmd.Name(), err, cmd.Name())
	return 1
}

// Failed marks an error as one of a program that was started: it goes to the log.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return &runError{err}
}

type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// Command makes the program's command.
func Command(s Spec) *cobra.Command {
	cmd := &cobra.Command{
		Use: s.Name, Short: s.Short, Long: s.Long,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			if err := s.check(); err != nil {
				return err
			}
			// A process can do this once.
			if err := logsapi.ValidateAndApply(s.Common.logs, nil); err != nil {
				return fmt.Errorf("setting up logs: %w", err)
			}
			ctrl.SetLogger(klog.Background())
			ctx, stop := program.UntilSignal(context.Background(), os.Exit)
			defer stop()
			return Failed(s.serve(ctx))
		},
	}
	var sets cliflag.NamedFlagSets
	s.AddFlags(&sets)
	s.Common.addFlags(&sets)
	Finish(cmd, sets)
	return cmd
}

// Finish gives a command its flags, in groups, and what every command has:
// --help and --version.
func Finish(cmd *cobra.Command, sets cliflag.NamedFlagSets) {
	// cobra's own template: any other one keeps the linker from dropping what no
	// program calls, which is a third of the agent.
	cmd.Version = program.VersionText()
	program.AddVersionFlag(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, fs := range sets.FlagSets {
		cmd.Flags().AddFlagSet(fs)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, sets, columns)
}

// check looks at the whole configuration.
func (s Spec) check() error {
	var p Problems
	s.Validate(&p)
	s.Common.validate(&p)
	return p.Err()
}

// serve runs the program between the first and the last answer of its HTTP
// server. When ctx ends, the program is no longer ready and has the grace to end.
func (s Spec) serve(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("program", s.Name)
	endpoints, err := listen(ctx, s.Common.HTTPAddress)
	if err != nil {
		return err
	}
	logger.Info("program starts", "version", program.Version(), "kubernetes", program.KubernetesVersion(), "http", endpoints.Addr())
	served := endpoints.serve()
	ended := make(chan error, 1)
	// A panic in it ends the process, with its stack.
	go func() { ended <- s.Run(ctx, endpoints) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		logger.Info("asked to end", "grace", s.Common.ShutdownGrace)
		err = within(s.Common.ShutdownGrace, ended)
	case err = <-served:
		return fmt.Errorf("--http-address: %w", err)
	}
	endpoints.close(context.WithoutCancel(ctx))
	if ctx.Err() != nil && err == nil {
		logger.Info("program ended as asked")
	}
	return err
}

// within is what ended says, or an error when it says nothing for so long.
func within(grace time.Duration, ended <-chan error) error {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("the program did not end within --shutdown-grace-period=%s", grace)
	}
}
