package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	componentconfig "k8s.io/component-base/config"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/internal/daemon"
	"github.com/berth-storage/berth/scheduler/extender"
	"github.com/berth-storage/berth/scheduler/snapshots"
)

// run runs the extender, and the cluster-scoped work beside it, until ctx ends.
func run(ctx context.Context, o *options, endpoints *daemon.Endpoints) error {
	access, err := o.common.RESTConfig("berth-extender")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return fmt.Errorf("making an API client: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("sending events: %w", err)
	}
	defer broadcaster.Shutdown()
	recorder := broadcaster.NewRecorder(scheme.Scheme, "berth-extender")

	factory := watched(client)
	// Pods of a stock kube-scheduler are tried again at every event, so that nobody
	// has to be woken when a snapshot becomes known.
	service, err := extender.New(extender.Options{
		Client: client, Informers: factory, Args: o.args, Clock: clock.RealClock{},
		Snapshots: snapshots.New(ctx, access, func() {}), Events: recorder,
	})
	if err != nil {
		return fmt.Errorf("making the extender: %w", err)
	}
	calls, err := extender.NewCalls(factory.Core().V1().Pods().Informer(), o.schedulerName, o.uncalledAfter, clock.RealClock{}, recorder)
	if err != nil {
		return fmt.Errorf("making the extender: %w", err)
	}
	registry := prometheus.NewRegistry()
	metrics := extender.NewMetrics(registry, func() float64 { return float64(service.Promises()) }, calls.Uncalled)
	endpoints.Metrics(registry)
	endpoints.Ready("caches", func(context.Context) error {
		if !service.Ready() {
			return errors.New("the cluster is being read")
		}
		return nil
	})
	endpoints.Ready("called", calls.Check)

	listener, err := o.serve.listener(ctx)
	if err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	ended := o.cluster.Start(ctx, access, componentconfig.LeaderElectionConfiguration{})
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { service.Run(groupCtx); return nil })
	group.Go(func() error { calls.Run(groupCtx); return nil })
	group.Go(func() error { return o.follow(groupCtx, client, calls) })
	group.Go(func() error {
		return serve(groupCtx, listener, service.Handler(o.serve.callers().Allow, metrics, calls.Called), o.args.BindTimeout())
	})
	endpoints.Started()
	err = group.Wait()
	if ctx.Err() != nil {
		<-ended
	}
	return err
}

// follow tells calls whether this replica is the one to be called.
func (o *options) follow(ctx context.Context, client kubernetes.Interface, calls *extender.Calls) error {
	if o.leaderLease == "" {
		calls.Active(true)
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the host's name: %w", err)
	}
	namespace, name, _ := strings.Cut(o.leaderLease, "/")
	return extender.FollowLease(ctx, client, clock.RealClock{}, namespace, name, host, calls.Active)
}
