package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/controller/claimwatch"
	controllerrun "github.com/berth-storage/berth/controller/run"
	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/driver"
	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/driver/pool/loopfile"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/internal/daemon"
	"github.com/berth-storage/berth/internal/program"
	"github.com/berth-storage/berth/nodeagent"
	"github.com/berth-storage/berth/nodeagent/nodeinfo"
	"github.com/berth-storage/berth/registrar"
	"github.com/berth-storage/berth/volume"
)

// statfsPeriod is how often the pools' filesystems are read for space that others
// took or freed.
const statfsPeriod = 30 * time.Second

// defaultPool is the name of the pool in --pool-dir.
const defaultPool = "default"

// run wires the sides of a node together and runs them until ctx ends or one
// of them fails: driver, registration, controllers and node agent meet here, on
// the driver's socket and in the API.
func run(ctx context.Context, o *options, endpoints *daemon.Endpoints) (err error) {
	access, err := o.common.RESTConfig("berth-agent")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return fmt.Errorf("making an API client: %w", err)
	}
	machine := host.New(host.Options{Root: o.hostRoot})
	for _, dir := range []string{o.registryDir(), o.state("")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making the agent's folders: %w", err)
		}
	}
	own, err := openDriver(ctx, o, client, machine)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.store.Close()) }()
	measured := newCallMetrics(endpoints)
	calls, err := csiclient.New(o.driverSocket(), measured.of(volume.DriverName)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, calls.Close()) }()
	watched, err := claimwatch.Choose(ctx, client.AdmissionregistrationV1(), claimwatch.Mode(o.claimWatch), o.nodeName)
	if err != nil {
		klog.FromContext(ctx).Error(err, "watching every claim")
	}
	capacities := own.Capacities()
	mgr, err := controllers(access, o, watched, calls, capacities, machine)
	if err != nil {
		return err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	agent, err := nodeAgent(o, client, machine, events, measured)
	if err != nil {
		return err
	}
	// Last, and before the driver is announced.
	server, err := own.Listen(ctx, o.driverSocket())
	if err != nil {
		return err
	}
	ready(endpoints, calls, mgr)

	klog.FromContext(ctx).Info("agent starts", "node", o.nodeName, "mode", o.mode,
		"claimWatch", watched.Claims, "claimWatchReason", watched.Why)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { own.labels.Run(ctx); return nil })
	g.Go(func() error { capacities.Watch(ctx, clock.RealClock{}, statfsPeriod); return nil })
	g.Go(func() error { return server.Serve(ctx) })
	g.Go(func() error {
		return registrar.Serve(ctx, registrar.Announcement{
			Dir: o.registryDir(), Driver: volume.DriverName, Endpoint: o.driverSocket(), Again: own.labels.Changed(),
		})
	})
	g.Go(func() error { return controllerrun.Manager(ctx, mgr) })
	if !watched.Since.IsZero() {
		guard := &claimwatch.Guard{Client: client, Node: o.nodeName}
		g.Go(func() error { return guard.Start(ctx) })
	}
	g.Go(func() error { return agent.Run(ctx) })
	return g.Wait()
}

// bundled is the driver of this node's own volumes, and what it is made of.
type bundled struct {
	*driver.Driver
	store  *loopfile.Pool
	labels *nodeinfo.Labels
}

func openDriver(ctx context.Context, o *options, client kubernetes.Interface, machine *host.System) (*bundled, error) {
	labels, err := nodeinfo.NewLabels(client, o.nodeName, o.topologyLabels)
	if err != nil {
		return nil, err
	}
	store, err := loopfile.Open(ctx, loopfile.Options{
		Name: defaultPool, Dir: o.poolDir, Reserve: o.reserveBytes(), Host: machine,
		Anchor: o.state("pool-" + defaultPool + ".json"),
	})
	if err != nil {
		return nil, err
	}
	made, err := driver.New(driver.Config{
		NodeID: o.nodeName, Pools: []pool.Pool{store}, Host: machine,
		Topology: labels.Wait, MaxVolumes: o.maxVolumes, Version: program.Version(),
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &bundled{Driver: made, store: store, labels: labels}, nil
}

// nodeAgent is the kubelet's side of CSI; its events go to the API server.
func nodeAgent(o *options, client kubernetes.Interface, machine *host.System, events record.EventBroadcaster, measured *callMetrics) (*nodeagent.Agent, error) {
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return nodeagent.New(nodeagent.Config{
		NodeName: o.nodeName, Root: o.root, Client: client, Host: machine,
		PodVolumesSocket: o.podVolumesSocket, Clock: clock.RealClock{}, ClientOptions: measured.of,
		Recorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "berth-agent", Host: o.nodeName}),
	})
}

// state is where the agent keeps what it must know after a restart.
func (o *options) state(name string) string { return filepath.Join(o.root, "berth", name) }
