package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// sampleMax is how many nodes the other side judges where all would take minutes.
const sampleMax = 100

// options are those of every measurement.
type options struct {
	// least is its least time.
	least time.Duration
	// alone leaves out the other side.
	alone bool
}

// sides measures both; each function measures for at least so long.
func (o options) sides(r result, ours, theirs func(least time.Duration) (time.Duration, error)) (result, error) {
	var err error
	if r.ours, err = ours(o.least); err != nil {
		return r, fmt.Errorf("ours: %w", err)
	}
	if o.alone {
		return r, nil
	}
	if r.theirs, err = theirs(o.least); err != nil {
		return r, fmt.Errorf("theirs: %w", err)
	}
	return r, nil
}

// benches are all measurements, in the order in which they are printed.
func benches(o options) []bench {
	var out []bench
	add := func(name string, run func(context.Context, options) (result, error)) {
		out = append(out, bench{name, func(ctx context.Context) ([]result, error) {
			r, err := run(ctx, o)
			return []result{r}, err
		}})
	}
	for _, s := range []struct{ nodes, theirs int }{{500, 500}, {2000, 2000}, {5000, sampleMax}, {20000, sampleMax}} {
		add(fmt.Sprintf("filter-static-%dx4", s.nodes), filterOf(s.theirs, s.nodes, static(s.nodes)))
	}
	for _, s := range []struct{ nodes, theirs int }{{500, 500}, {2000, 2000}, {5000, 5000}, {20000, sampleMax}} {
		add(fmt.Sprintf("filter-dynamic-%d", s.nodes), filterOf(s.theirs, s.nodes, dynamic(s.nodes, 2)))
	}
	add("filter-full-5000", filterOf(sampleMax, 0, dynamic(5000, 1)))
	add("filter-bound-5000", filterOf(5000, 1, bound(5000)))
	add("limits-5000x100", limits(false, 5000, 50, 2))
	add("limits-anew-5000x100", limits(true, 5000, 50, 2))
	for _, nodes := range []int{1000, 5000} {
		add(fmt.Sprintf("scheduler-static-%dx4", nodes), scheduled(static(nodes)))
		add(fmt.Sprintf("scheduler-dynamic-%d", nodes), scheduled(dynamic(nodes, 2)))
	}
	for _, kind := range []string{"volume", "claim", "capacity", "node"} {
		add("event-"+kind+"-5000x4", event(kind, 5000))
	}
	// A pod takes the other side a second.
	beside := extended(1000, sample{ours: 1000, theirs: 20})
	return append(out, bench{"extender-dynamic-1000", func(ctx context.Context) ([]result, error) { return beside(ctx, o) }})
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// asked is the pod that every benchmark places, with claim "asked".
func asked() *corev1.Pod { return pod("asked", "", "asked") }

// static is a cluster with 4 free local volumes of one class a node.
func static(nodes int) func(*world) {
	return func(w *world) {
		w.put(class("local", volume.NoProvisioner))
		w.put(claim("asked", "local"))
		for i := range nodes {
			w.put(node(nodeName(i)))
			for v := range 4 {
				w.put(localVolume(fmt.Sprintf("pv-%05d-%d", i, v), "local", nodeName(i), 1+v))
			}
		}
	}
}

// dynamic is a cluster with a capacity object a node, of so many GiB.
func dynamic(nodes, gib int) func(*world) {
	return func(w *world) {
		w.put(class("dynamic", driver))
		w.put(&storagev1.CSIDriver{ObjectMeta: meta(driver), Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}})
		w.put(claim("asked", "dynamic"))
		for i := range nodes {
			w.put(node(nodeName(i)))
			w.put(csiNode(nodeName(i), 0))
			w.put(capacity("dynamic", nodeName(i), gib))
		}
	}
}

// bound is a cluster in which the claim is bound to a volume of one node.
func bound(nodes int) func(*world) {
	return func(w *world) {
		w.put(class("local", volume.NoProvisioner))
		w.put(bind(claim("asked", "local"), "pv-00007"))
		for i := range nodes {
			w.put(node(nodeName(i)))
			w.put(localVolume(fmt.Sprintf("pv-%05d", i), "local", nodeName(i), 2))
		}
	}
}

// pass judges nodes on this goroutine; want of them must fit.
func pass(ctx context.Context, p filterer, infos []fwk.NodeInfo, want int) error {
	state, pod := framework.NewCycleState(), asked()
	_, status := p.PreFilter(ctx, state, pod, infos)
	if !status.IsSuccess() {
		return fmt.Errorf("PreFilter: %w", status.AsError())
	}
	fit := 0
	for _, info := range infos {
		if p.Filter(ctx, state, pod, info).IsSuccess() {
			fit++
		}
	}
	if fit != want {
		return fmt.Errorf("%d nodes fit, want %d", fit, want)
	}
	return nil
}

// filterOf measures VolumeBinding's part; theirs is how many of the nodes the
// other side judges, fits how many of all fit.
func filterOf(theirs, fits int, fill func(*world)) func(context.Context, options) (result, error) {
	return func(ctx context.Context, o options) (result, error) {
		w, err := newWorld(ctx, fill)
		if err != nil {
			return result{}, err
		}
		// The first pass reads the informers' stores.
		if err := pass(ctx, w.ours, w.infos, fits); err != nil {
			return result{}, fmt.Errorf("ours: %w", err)
		}
		var r result
		sample, factor := w.infos[:theirs], len(w.infos)/theirs
		if factor > 1 {
			r.note = fmt.Sprintf("theirs: %d of %d nodes judged, times %d", theirs, len(w.infos), factor)
		}
		return o.sides(r, func(least time.Duration) (time.Duration, error) {
			return median(ctx, least, func() error { return pass(ctx, w.ours, w.infos, fits) })
		}, func(least time.Duration) (time.Duration, error) {
			t, err := median(ctx, least, func() error { return pass(ctx, w.binding, sample, min(fits, theirs)) })
			return t * time.Duration(factor), err
		})
	}
}

// crowded is a cluster with so many pods a node, each with volumes that are
// attached, and room for one more on each node.
func crowded(nodes, pods, volumes int) func(*world) {
	return func(w *world) {
		w.put(class("remote", driver))
		mine := bind(claim("asked", "remote"), "pv-asked")
		w.put(mine)
		w.put(remoteVolume(mine))
		for i := range nodes {
			on := nodeName(i)
			w.put(node(on))
			w.put(csiNode(on, int32(pods*volumes+1))) //nolint:gosec // both are small
			for p := range pods {
				claims := make([]string, 0, volumes)
				for v := range volumes {
					name := fmt.Sprintf("%s-%d-%d", on, p, v)
					pvc := bind(claim(name, "remote"), name)
					w.put(pvc)
					w.put(remoteVolume(pvc))
					claims = append(claims, name)
				}
				w.put(pod(fmt.Sprintf("%s-%d", on, p), on, claims...))
			}
		}
	}
}

// limits measures NodeVolumeLimits' part. anew: every node's pods have changed
// since the pass before, as after a start; otherwise none has.
func limits(anew bool, nodes, pods, volumes int) func(context.Context, options) (result, error) {
	return func(ctx context.Context, o options) (result, error) {
		w, err := newWorld(ctx, crowded(nodes, pods, volumes))
		if err != nil {
			return result{}, err
		}
		// The first pass reads the informers' stores.
		if err := pass(ctx, w.ours, w.infos, nodes); err != nil {
			return result{}, err
		}
		return o.sides(result{}, func(least time.Duration) (time.Duration, error) {
			return median(ctx, least, func() error {
				if anew {
					w.touch()
				}
				return pass(ctx, w.ours, w.infos, nodes)
			})
		}, func(least time.Duration) (time.Duration, error) {
			return median(ctx, least, func() error { return pass(ctx, w.limits, w.infos, nodes) })
		})
	}
}

// scheduled measures one pod through the scheduler's search for a node.
func scheduled(fill func(*world)) func(context.Context, options) (result, error) {
	return func(ctx context.Context, o options) (result, error) {
		w, err := newWorld(ctx, fill)
		if err != nil {
			return result{}, err
		}
		if err := pass(ctx, w.ours, w.infos, len(w.infos)); err != nil {
			return result{}, fmt.Errorf("ours: %w", err)
		}
		place := func(profile string) func(time.Duration) (time.Duration, error) {
			return func(least time.Duration) (time.Duration, error) {
				return median(ctx, least, func() error {
					info, err := queued(asked())
					if err != nil {
						return err
					}
					_, err = w.sched.SchedulePod(ctx, w.sched.Profiles[profile], framework.NewCycleState(), info)
					return err
				})
			}
		}
		return o.sides(result{}, place(berth), place(stock))
	}
}

// event measures what the cache does for one changed object, and for the snapshot
// that the next pod takes.
func event(kind string, nodes int) func(context.Context, options) (result, error) {
	return func(ctx context.Context, o options) (result, error) {
		w, err := newWorld(ctx, func(w *world) {
			static(nodes)(w)
			dynamic(nodes, 2)(w)
		})
		if err != nil {
			return result{}, err
		}
		c, err := cache.New(w.factory, cache.Options{Clock: clock.RealClock{}})
		if err != nil {
			return result{}, err
		}
		c.Snapshot()
		n := 0
		ours, err := median(ctx, o.least, func() error {
			n++
			on := nodeName(n % nodes)
			switch kind {
			case "volume":
				pv := localVolume(fmt.Sprintf("pv-%05d-1", n%nodes), "local", on, 2)
				w.put(pv)
				c.Observe(pv)
			case "claim":
				pvc := claim("asked", "local")
				pvc.Annotations = map[string]string{volume.AnnSelectedNode: on}
				w.put(pvc)
				c.Observe(pvc)
			case "capacity":
				o := capacity("dynamic", on, 2+n%5)
				w.put(o)
				c.Observe(o)
			case "node":
				o := node(on)
				w.put(o)
				c.Observe(o)
			}
			c.Snapshot()
			return nil
		})
		return result{ours: ours, note: "theirs: no index"}, err
	}
}
