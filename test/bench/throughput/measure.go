package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-storage/berth/test/bench/rig"
)

func run(ctx context.Context, o options) error {
	for _, w := range o.workloads {
		for _, nodes := range o.nodes {
			if err := measure(ctx, o, rig.Workload(w), nodes); err != nil {
				return fmt.Errorf("%s: %w", caseName(rig.Workload(w), nodes), err)
			}
		}
	}
	return nil
}

// rates are pods a second; 0 where it was not measured.
type rates struct{ ours, theirs, ceiling float64 }

// measure measures one case. Theirs and the ceiling share a cluster, since what
// the few pods of the stock scheduler change is nothing to blind writes; ours has
// one as fresh as theirs was.
func measure(ctx context.Context, o options, w rig.Workload, nodes int) error {
	var got rates
	if o.has(partTheirs) || o.has(partCeiling) {
		err := onCluster(ctx, o, w, nodes, partTheirs, func(ctx context.Context, c *cluster) (err error) {
			if o.has(partTheirs) {
				if got.theirs, err = c.schedule(ctx, rig.Theirs, o.enough, o.budget); err != nil {
					return err
				}
			}
			if o.has(partCeiling) {
				got.ceiling, err = c.ceiling(ctx)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if o.has(partOurs) {
		err := onCluster(ctx, o, w, nodes, partOurs, func(ctx context.Context, c *cluster) (err error) {
			got.ours, err = c.schedule(ctx, rig.Ours, o.pods, o.timeout)
			return err
		})
		if err != nil {
			return err
		}
	}
	return got.print(caseName(w, nodes))
}

// print writes the lines; what was not measured stands there as 0.
func (r rates) print(name string) error {
	line := rig.Line{Name: "throughput-" + name, Ours: r.ours, Theirs: r.theirs, Ratio: ratio(r.ours, r.theirs)}
	if err := line.Print(os.Stdout); err != nil {
		return err
	}
	if r.ceiling == 0 {
		return nil
	}
	_, err := fmt.Fprintf(os.Stdout, "bench throughput-ceiling-%s ours=%s ceiling=%s ratio=%s\n",
		name, rig.Figure(r.ours), rig.Figure(r.ceiling), rig.Figure(ratio(r.ours, r.ceiling)))
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// cluster is a running cluster with the objects of one case.
type cluster struct {
	*rig.Rig
	options options
	load    rig.Workload
	nodes   int
	watch   *rig.Watch
}

// onCluster makes a cluster for one part of a case, and takes it away.
func onCluster(ctx context.Context, o options, w rig.Workload, nodes int, part string, do func(context.Context, *cluster) error) (err error) {
	name := caseName(w, nodes)
	r, err := rig.Start(ctx, rig.Options{
		DataDir: o.dataDir, BinDir: o.binDir, Progress: os.Stderr, KeepLogs: folder(o.keepLogs, name, part),
	})
	if err != nil {
		return err
	}
	// Whoever watches ends before the server does.
	working, stop := context.WithCancel(ctx)
	ended := make([]func(), 0, 2)
	defer func() {
		stop()
		for _, wait := range ended {
			wait()
		}
		err = errors.Join(err, r.Close(context.WithoutCancel(ctx)))
	}()
	r.Logf("%s, %s: a fresh cluster", name, part)
	if err := r.World(ctx, w, nodes); err != nil {
		return err
	}
	watch, err := r.NewWatch()
	if err != nil {
		return err
	}
	storage, err := r.NewStorage(watch, o.pvController == controllerFake)
	if err != nil {
		return err
	}
	ended = append(ended, watch.Wait, storage.Wait)
	if err := watch.Start(working); err != nil {
		return err
	}
	storage.Start(working)
	if o.pvController == controllerReal {
		if err := r.StartPVController(); err != nil {
			return err
		}
	}
	return do(working, &cluster{Rig: r, options: o, load: w, nodes: nodes, watch: watch})
}

// rateMin is how many placed pods have a rate.
const rateMin = 2

// schedule lets a scheduler place pods until so many are placed or its time is
// over, and returns its rate.
func (c *cluster) schedule(ctx context.Context, s rig.Scheduler, want int, budget time.Duration) (perSecond float64, err error) {
	pods, err := c.Pods(ctx, string(s), c.options.pods)
	if err != nil {
		return 0, err
	}
	want = min(want, len(pods))
	before, err := c.look(ctx)
	if err != nil {
		return 0, err
	}
	started := time.Now()
	running, err := c.StartScheduler(s)
	if err != nil {
		return 0, err
	}
	c.Logf("%s runs; waiting for %d pods, at most %s", s, want, budget)
	profiled := c.profile(ctx, s, running)
	times, err := c.watch.AwaitPlaced(ctx, pods, want, budget, running.Done())
	if err == nil && len(times) < rateMin && running.Err() == nil {
		c.Logf("%s placed %d; waiting for %d, which a rate needs, at most %s", s, len(times), rateMin, c.options.timeout)
		times, err = c.watch.AwaitPlaced(ctx, pods, rateMin, c.options.timeout, running.Done())
	}
	if err = errors.Join(err, running.Err()); err != nil {
		return 0, err
	}
	after, err := c.look(ctx)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(<-profiled, c.Stop(ctx, string(s)), c.watch.Check(pods)); err != nil {
		return 0, err
	}
	c.Logf("%s placed %d pods within %s", s, len(times), time.Since(started).Round(time.Second))
	c.tell(before, after, len(times))
	if s == rig.Ours && len(times) < want {
		return 0, fmt.Errorf("%s placed %d of %d pods within %s%s", s, len(times), want, budget, c.watch.Why(pods))
	}
	if perSecond, err = rig.Rate(times); err != nil {
		return 0, fmt.Errorf("%s, given %s (--budget): %w", s, budget, err)
	}
	return perSecond, nil
}

// profile takes a profile of a scheduler at work, where one is wanted. The
// channel gives its end, after ctx's if need be.
func (c *cluster) profile(ctx context.Context, s rig.Scheduler, running *rig.Running) <-chan error {
	done := make(chan error, 1)
	if c.options.profiles == "" {
		done <- nil
		return done
	}
	go func() {
		done <- func() error {
			if err := os.MkdirAll(c.options.profiles, 0o755); err != nil {
				return fmt.Errorf("making the folder of the profiles: %w", err)
			}
			if err := running.AwaitReady(ctx); err != nil {
				return err
			}
			path := filepath.Join(c.options.profiles, caseName(c.load, c.nodes)+"-"+string(s)+".pprof")
			return running.Profile(ctx, fmt.Sprintf("profile?seconds=%.0f", c.options.profilePeriod.Seconds()), path)
		}()
	}()
	return done
}

// ceiling writes blindly what placing the pods takes.
func (c *cluster) ceiling(ctx context.Context) (perSecond float64, err error) {
	pods, err := c.Pods(ctx, "nobody", c.options.pods)
	if err != nil {
		return 0, err
	}
	before, err := c.look(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.timeout)
	defer cancel()
	if err := c.PlaceBlindly(ctx, c.watch, c.load, pods, c.nodes, c.options.atOnce); err != nil {
		return 0, fmt.Errorf("writing without a scheduler: %w", err)
	}
	times, err := c.watch.AwaitPlaced(ctx, pods, len(pods), c.options.timeout, nil)
	if err != nil {
		return 0, err
	}
	after, err := c.look(ctx)
	if err != nil {
		return 0, err
	}
	c.Logf("ceiling: %d pods", len(times))
	c.tell(before, after, len(times))
	return rig.Rate(times)
}

// sight is what was used until one moment.
type sight struct {
	usages   map[string]rig.Usage
	requests rig.Requests
}

func (c *cluster) look(ctx context.Context) (s sight, err error) {
	if s.usages, err = c.Usages(); err != nil {
		return s, err
	}
	s.requests, err = c.Requests(ctx)
	return s, err
}

// tell tells what so many pods took between two looks.
func (c *cluster) tell(before, after sight, pods int) {
	c.Logf("  processors: %s", spent(before.usages, after.usages))
	c.Logf("  requests a pod: %s", after.requests.Since(before.requests, max(1, pods)))
}

// spent tells what processor time each process took between two looks, the
// greatest first.
func spent(before, after map[string]rig.Usage) string {
	used := func(name string) time.Duration { return after[name].CPU - before[name].CPU }
	names := slices.SortedFunc(maps.Keys(after), func(a, b string) int {
		return cmp.Or(cmp.Compare(used(b), used(a)), strings.Compare(a, b))
	})
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.1fs", name, used(name).Seconds()))
	}
	return strings.Join(parts, ", ")
}
