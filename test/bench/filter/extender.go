package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/parallelize"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/args"
	"github.com/berth-storage/berth/scheduler/extender"
)

// sample is how many pods a percentile is taken of, at least.
type sample struct{ ours, theirs int }

// times are how long the parts of a pod took, and all of it.
type times struct{ filter, prioritize, bind, all []time.Duration }

// at is the smallest duration that so many per cent of them do not exceed.
func at(percent int, of []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[(len(sorted)*percent+99)/100-1]
}

// extended measures what the extender adds to a pod's way through a stock
// kube-scheduler, with that one's own client.
func extended(nodes int, pods sample) func(context.Context, options) ([]result, error) {
	return func(ctx context.Context, o options) ([]result, error) {
		ours, err := throughExtender(ctx, dynamic(nodes, 2), o.least, pods.ours)
		if err != nil {
			return nil, fmt.Errorf("ours: %w", err)
		}
		runtime.GC()
		note := fmt.Sprintf("ours: filter %s + prioritize %s + bind %s", short(at(50, ours.filter)), short(at(50, ours.prioritize)), short(at(50, ours.bind)))
		p50, p99 := result{part: "p50", ours: at(50, ours.all), note: note}, result{part: "p99", ours: at(99, ours.all)}
		if !o.alone {
			theirs, err := throughPlugin(ctx, dynamic(nodes, 2), o.least, pods.theirs)
			if err != nil {
				return nil, fmt.Errorf("theirs: %w", err)
			}
			p50.theirs, p99.theirs = at(50, theirs), at(99, theirs)
			p99.note = fmt.Sprintf("of %d pods; theirs: of %d", len(ours.all), len(theirs))
		}
		return []result{p50, p99}, nil
	}
}

// beside is berth-extender behind a socket, and kube-scheduler's client of it.
type beside struct {
	*api
	calls fwk.Extender
	infos []fwk.NodeInfo
}

// startBeside starts it over a cluster, until ctx is done.
func startBeside(ctx context.Context, fill func(*world)) (*beside, error) {
	w := &world{factory: informers.NewSharedInformerFactory(fake.NewClientset(), 0)}
	fill(w)
	a, err := newAPI(w.objects)
	if err != nil {
		return nil, err
	}
	b := &beside{api: a}
	for _, n := range w.nodes {
		info := framework.NewNodeInfo()
		info.SetNode(n)
		b.infos = append(b.infos, info)
	}
	defaults, err := args.Decode(nil, extender.BindTimeoutSeconds)
	if err != nil {
		return nil, fmt.Errorf("reading no arguments: %w", err)
	}
	service, err := extender.New(extender.Options{Client: b.client, Informers: b.factory, Args: defaults, Clock: clock.RealClock{}})
	if err != nil {
		return nil, fmt.Errorf("making the extender: %w", err)
	}
	b.factory.Start(ctx.Done())
	go service.Run(ctx)
	if !service.WaitForSync(ctx) {
		return nil, context.Cause(ctx)
	}
	none := func() float64 { return 0 }
	handler := service.Handler(func(*http.Request) error { return nil }, extender.NewMetrics(prometheus.NewRegistry(), none, none), func() {})
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
	b.calls, err = scheduler.NewHTTPExtender(&config.Extender{
		URLPrefix: "http://" + listener.Addr().String(), FilterVerb: "filter", PrioritizeVerb: "prioritize", BindVerb: "bind",
		Weight: 1, NodeCacheCapable: true, HTTPTimeout: metav1.Duration{Duration: time.Minute},
	})
	if err != nil {
		return nil, fmt.Errorf("making kube-scheduler's client: %w", err)
	}
	return b, nil
}

// throughExtender takes pods, one after the other, each with a claim of its own that is
// to be provisioned, through filter and prioritize of all nodes and the bind to one.
func throughExtender(ctx context.Context, fill func(*world), least time.Duration, pods int) (times, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	b, err := startBeside(ctx, fill)
	if err != nil {
		return times{}, err
	}
	runtime.GC()
	var t times
	for i, began := 0, time.Now(); len(t.all) < pods || time.Since(began) < least; i++ {
		name := fmt.Sprintf("new-%06d", i)
		p, c := pod(name, "", name), claim(name, "dynamic")
		if err := b.arrive(ctx, p, c); err != nil {
			return times{}, err
		}
		// The first finds what the others find in caches, and no connection.
		if err := b.place(p, b.infos[i%len(b.infos)].Node().Name, &t); err != nil {
			return times{}, fmt.Errorf("pod %s: %w", name, err)
		}
		if i == 0 {
			t = times{}
		}
		if err := b.leave(ctx, p, name); err != nil {
			return times{}, err
		}
	}
	return t, nil
}

// place takes one pod to its node.
func (b *beside) place(p *corev1.Pod, on string, t *times) error {
	filtering := time.Now()
	fit, _, _, err := b.calls.Filter(p, b.infos)
	prioritizing := time.Now()
	if err != nil || len(fit) != len(b.infos) {
		return errors.Join(fmt.Errorf("%d of %d nodes fit", len(fit), len(b.infos)), err)
	}
	scores, _, err := b.calls.Prioritize(p, fit)
	binding := time.Now()
	if err != nil || !slices.ContainsFunc(*scores, func(s extenderv1.HostPriority) bool { return s.Host == on }) {
		return errors.Join(fmt.Errorf("node %s has no score", on), err)
	}
	err = b.calls.Bind(&corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: on},
	})
	end := time.Now()
	t.filter = append(t.filter, prioritizing.Sub(filtering))
	t.prioritize = append(t.prioritize, binding.Sub(prioritizing))
	t.bind = append(t.bind, end.Sub(binding))
	t.all = append(t.all, end.Sub(filtering))
	return err
}

// placer is what is measured of VolumeBinding.
type placer interface {
	filterer
	fwk.ScorePlugin
	fwk.ReservePlugin
}

// throughPlugin takes the same pod through VolumeBinding in kube-scheduler's process,
// on as many goroutines as that has: Filter and Score of all nodes, and Reserve.
func throughPlugin(ctx context.Context, fill func(*world), least time.Duration, pods int) ([]time.Duration, error) {
	w, err := newWorld(ctx, fill)
	if err != nil {
		return nil, err
	}
	theirs, ok := w.binding.(placer)
	if !ok {
		return nil, fmt.Errorf("a %T neither scores nor reserves", w.binding)
	}
	var out []time.Duration
	for i, began := 0, time.Now(); len(out) < pods || time.Since(began) < least; i++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		state, p, on := framework.NewCycleState(), asked(), w.infos[i%len(w.infos)].Node().Name
		from := time.Now()
		err := judge(ctx, theirs, state, p, w.infos)
		if err == nil {
			err = theirs.Reserve(ctx, state, p, on).AsError()
		}
		took := time.Since(from)
		theirs.Unreserve(ctx, state, p, on)
		if err != nil {
			return nil, err
		}
		out = append(out, took)
	}
	return out, nil
}

// judge is the other side's filter and prioritize.
func judge(ctx context.Context, theirs placer, state fwk.CycleState, p *corev1.Pod, infos []fwk.NodeInfo) error {
	if _, s := theirs.PreFilter(ctx, state, p, infos); !s.IsSuccess() {
		return fmt.Errorf("PreFilter: %s", s.Message())
	}
	codes := make([]fwk.Code, len(infos))
	workers := parallelize.NewParallelizer(parallelize.DefaultParallelism)
	workers.Until(ctx, len(infos), func(i int) { codes[i] = theirs.Filter(ctx, state, p, infos[i]).Code() }, "Filter")
	if i := slices.IndexFunc(codes, func(c fwk.Code) bool { return c != fwk.Success }); i >= 0 {
		return fmt.Errorf("node %s does not fit", infos[i].Node().Name)
	}
	workers.Until(ctx, len(infos), func(i int) { _, s := theirs.Score(ctx, state, p, infos[i]); codes[i] = s.Code() }, "Score")
	if i := slices.IndexFunc(codes, func(c fwk.Code) bool { return c != fwk.Success }); i >= 0 {
		return fmt.Errorf("node %s has no score", infos[i].Node().Name)
	}
	return nil
}
