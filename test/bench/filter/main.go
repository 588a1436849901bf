// Command filter measures what it costs to judge nodes for one pod: BerthVolumes
// beside kube-scheduler's own plugins VolumeBinding and NodeVolumeLimits, on the
// same objects in the same informers, in one run.
//
//	filter-*     PreFilter and Filter of every node, on one goroutine
//	limits-*     the same, where only attach limits are asked
//	scheduler-*  one pod through kube-scheduler's own search for a node: its
//	             goroutines, its sampling of nodes, PreFilter to Score
//	event-*      what one informer event costs the indexes that make that cheap
//	extender-*   what berth-extender adds to one pod, whose claim is to be provisioned:
//	             filter and prioritize of all nodes and bind, called with
//	             kube-scheduler's own client over a loopback socket, names of nodes
//	             only. Bind has an API server and a provisioner that answer at once.
//	             Theirs: VolumeBinding's Filter and Score of all nodes and its Reserve,
//	             in the process, on 16 goroutines; its writes and its wait are left out
//
// Each line on stdout is one measurement; a time is the median of its rounds, if its
// name does not say which percentile.
// Where the other side would take minutes it judges a sample of the nodes, and the
// line says so: its cost grows with their number alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "filter:", err)
		os.Exit(1) //nolint:gocritic // stop only restores the signals
	}
}

// bench is one measurement.
type bench struct {
	name string
	run  func(context.Context) ([]result, error)
}

// profileTo profiles this process until the function that it returns.
func profileTo(file string) (func(), error) {
	f, err := os.Create(file) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "filter: closing the profile:", err)
		}
	}, nil
}

// run measures what the flags ask for. Lines go to out, progress to log.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	flags := flag.NewFlagSet("filter", flag.ContinueOnError)
	only := flags.String("run", ".", "Regular expression of the benchmarks to run.")
	profile := flags.String("cpuprofile", "", "File for a CPU profile of ours alone.")
	least := flags.Duration("least", time.Second, "Least time of a measurement; one round is always made.")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("flag -run: %w", err)
	}
	if *profile != "" {
		stop, err := profileTo(*profile)
		if err != nil {
			return fmt.Errorf("flag -cpuprofile: %w", err)
		}
		defer stop()
	}
	// Kubernetes' packages log what is nothing to a benchmark.
	quiet()
	for _, b := range benches(options{least: *least, alone: *profile != ""}) {
		if !wanted.MatchString(b.name) {
			continue
		}
		fmt.Fprintf(log, "%s …\n", b.name)
		results, err := b.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		for _, r := range results {
			fmt.Fprintln(out, r.line(b.name))
		}
	}
	return nil
}
