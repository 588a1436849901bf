package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/berth-storage/berth/internal/clusterwork"
	"github.com/berth-storage/berth/internal/daemon"
	"github.com/berth-storage/berth/internal/program"
	"github.com/berth-storage/berth/scheduler/plugin"
)

// run runs the scheduler, and the cluster-scoped work beside it, until ctx ends.
func run(ctx context.Context, opts *options.Options, beside *clusterwork.Work) error {
	klog.FromContext(ctx).Info("program starts", "program", "berth-scheduler", "version", program.Version(), "kubernetes", program.KubernetesVersion())
	names, err := cache.NewInformerName("berth-scheduler")
	if err != nil {
		return fmt.Errorf("naming the informers: %w", err)
	}
	opts.InformerName = names
	// The scheduler ends the process itself as soon as its context ends, so that
	// context outlives the work beside it, whose Lease is free by then.
	scheduling, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	config, made, err := app.Setup(scheduling, opts, app.WithPlugin(plugin.Name, new(plugin.Factory).New))
	if err != nil {
		return fmt.Errorf("making the scheduler: %w", err)
	}
	if gates, ok := opts.ComponentGlobalsRegistry.FeatureGateFor(compatibility.DefaultKubeComponent).(featuregate.MutableFeatureGate); ok {
		gates.AddMetrics()
	}
	opts.ComponentGlobalsRegistry.AddMetrics()
	// Kubernetes' own /metrics shows this registry.
	legacyregistry.RawMustRegister(daemon.BuildInfo(), daemon.ControllerMetrics())

	ended := beside.Start(ctx, config.KubeConfig, config.ComponentConfig.LeaderElection)
	context.AfterFunc(ctx, func() {
		<-ended
		end()
	})
	err = app.Run(scheduling, config, made)
	if ctx.Err() != nil {
		// It calls every end an error.
		return nil
	}
	return err
}
