package main

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-storage/berth/controller/capacity"
	"github.com/berth-storage/berth/controller/claimwatch"
	"github.com/berth-storage/berth/controller/expand"
	"github.com/berth-storage/berth/controller/inflight"
	"github.com/berth-storage/berth/controller/provision"
	"github.com/berth-storage/berth/controller/reclaim"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/volume"
)

// controllers makes the manager of the node's own volumes.
func controllers(access *rest.Config, o *options, watched claimwatch.Choice, calls *csiclient.Client, source capacity.Source, files provision.Files) (manager.Manager, error) {
	here := scope.Scope{Driver: volume.DriverName, Node: o.nodeName}
	mgr, err := ctrl.NewManager(access, ctrl.Options{
		MapperProvider: kinds,
		Cache:          cache.Options{ByObject: here.Cache(o.namespace, watched.Claims)},
		// The program serves its own metrics and health.
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// The program's own grace bounds this one too.
		GracefulShutdownTimeout: new(o.common.ShutdownGrace),
		// A panic is a mistake in the program, and what it holds in memory is in doubt:
		// the next process begins with what is recorded.
		Controller: config.Controller{RecoverPanic: new(false)},
	})
	if err != nil {
		return nil, fmt.Errorf("making the controller manager: %w", err)
	}
	records, err := provision.NewFileRecords(o.state("provision"), files)
	if err != nil {
		return nil, err
	}
	running := &inflight.Set{}
	if err := provision.SetupWithManager(mgr, provision.Config{
		Scope: here, Driver: calls.Controller(), Capabilities: calls, Records: records, InFlight: running,
	}); err != nil {
		return nil, err
	}
	if err := reclaim.SetupWithManager(mgr, reclaim.Config{Scope: here, Driver: calls.Controller()}); err != nil {
		return nil, err
	}
	if err := expand.SetupWithManager(mgr, expand.Config{Scope: here, Driver: calls.Controller()}); err != nil {
		return nil, err
	}
	if err := capacity.SetupWithManager(mgr, capacity.Config{
		Scope: here, Namespace: o.namespace, Source: source, InFlight: running,
	}); err != nil {
		return nil, err
	}
	if watched.Claims == scope.LabelledClaims {
		if err := mgr.Add(&claimwatch.Backlog{
			Scope: here, Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Since: watched.Since, Clock: clock.RealClock{},
		}); err != nil {
			return nil, fmt.Errorf("setting up the labelling of claims: %w", err)
		}
	}
	return mgr, nil
}
