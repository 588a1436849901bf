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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/controller/claimwatch"
	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/driver"
	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/driver/pool/loopfile"
	"github.com/berth-storage/berth/host"
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
func run(ctx context.Context, o *options) (err error) {
	kubeconfig, err := restConfig(o)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(kubeconfig)
	if err != nil {
		return fmt.Errorf("making an API client: %w", err)
	}
	machine := host.New(host.Options{Root: o.hostRoot})
	for _, dir := range []string{o.registryDir(), o.state("")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making the agent's folders: %w", err)
		}
	}
	store, err := loopfile.Open(ctx, loopfile.Options{
		Name: defaultPool, Dir: o.poolDir, Reserve: o.reserveBytes(), Host: machine,
		Anchor: o.state("pool-" + defaultPool + ".json"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	labels, err := nodeinfo.NewLabels(client, o.nodeName, o.topologyLabels)
	if err != nil {
		return err
	}
	bundled, err := driver.New(driver.Config{
		NodeID: o.nodeName, Pools: []pool.Pool{store}, Host: machine,
		Topology: labels.Wait, MaxVolumes: o.maxVolumes, Version: version.Get().GitVersion,
	})
	if err != nil {
		return err
	}
	calls, err := csiclient.New(o.driverSocket())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, calls.Close()) }()
	watched, err := claimwatch.Choose(ctx, client.AdmissionregistrationV1(), claimwatch.Mode(o.claimWatch), o.nodeName)
	if err != nil {
		klog.FromContext(ctx).Error(err, "watching every claim")
	}
	capacities := bundled.Capacities()
	mgr, err := controllers(kubeconfig, o, watched, calls, capacities, machine)
	if err != nil {
		return err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	agent, err := nodeAgent(o, client, machine, events)
	if err != nil {
		return err
	}
	// Last, and before the driver is announced.
	server, err := bundled.Listen(ctx, o.driverSocket())
	if err != nil {
		return err
	}

	klog.FromContext(ctx).Info("agent starts", "node", o.nodeName, "mode", o.mode,
		"claimWatch", watched.Claims, "claimWatchReason", watched.Why, "version", version.Get().GitVersion)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { labels.Run(ctx); return nil })
	g.Go(func() error { capacities.Watch(ctx, clock.RealClock{}, statfsPeriod); return nil })
	g.Go(func() error { return server.Serve(ctx) })
	g.Go(func() error {
		return registrar.Serve(ctx, registrar.Announcement{
			Dir: o.registryDir(), Driver: volume.DriverName, Endpoint: o.driverSocket(), Again: labels.Changed(),
		})
	})
	g.Go(func() error { return mgr.Start(ctx) })
	if !watched.Since.IsZero() {
		guard := &claimwatch.Guard{Client: client, Node: o.nodeName}
		g.Go(func() error { return guard.Start(ctx) })
	}
	g.Go(func() error { return agent.Run(ctx) })
	return g.Wait()
}

// nodeAgent is the kubelet's side of CSI; its events go to the API server.
func nodeAgent(o *options, client kubernetes.Interface, machine *host.System, events record.EventBroadcaster) (*nodeagent.Agent, error) {
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return nodeagent.New(nodeagent.Config{
		NodeName: o.nodeName, Root: o.root, Client: client, Host: machine,
		PodVolumesSocket: o.podVolumesSocket, Clock: clock.RealClock{},
		Recorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "berth-agent", Host: o.nodeName}),
	})
}

// restConfig reads --kubeconfig, or the pod's service account.
func restConfig(o *options) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = "berth-agent/" + version.Get().GitVersion
	config.QPS, config.Burst = o.apiQPS, o.apiBurst
	return config, nil
}

// state is where the agent keeps what it must know after a restart.
func (o *options) state(name string) string { return filepath.Join(o.root, "berth", name) }
