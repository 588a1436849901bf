package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	eventrecord "k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/nodeagent/apply"
	"github.com/berth-storage/berth/nodeagent/desired"
	"github.com/berth-storage/berth/nodeagent/nodeinfo"
	"github.com/berth-storage/berth/nodeagent/podvolumes"
	"github.com/berth-storage/berth/nodeagent/record"
	"github.com/berth-storage/berth/registrar"
	"github.com/berth-storage/berth/volume"
)

const (
	// defaultWorkers is how many volumes are worked on at once.
	defaultWorkers = 16

	// Backoff of one volume (kubelet, goroutinemap/exponentialbackoff).
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 2*time.Minute + 2*time.Second

	bootIDFile = "/proc/sys/kernel/random/boot_id"
)

// Config is what an Agent needs.
type Config struct {
	// NodeName is the name of the Node object.
	NodeName string
	// Root is the folder with the kubelet's layout, and the agent's own.
	Root   string
	Client kubernetes.Interface
	// Host reads the mount table.
	Host interface {
		MountsUnder(prefix string) ([]host.MountPoint, error)
	}
	// PodVolumesSocket is where pod runtimes ask; by default
	// <Root>/berth/podvolumes.sock.
	PodVolumesSocket string
	// Recorder makes events; by default one that writes them with Client.
	Recorder eventrecord.EventRecorder
	// ClientOptions are those of the client of a driver, by the driver's name; none
	// if nil.
	ClientOptions func(driver string) []csiclient.Option
	// Clock is the real one if nil.
	Clock clock.WithTicker
	// BootID identifies the machine's boot; read from the kernel if empty.
	BootID string
	// Workers is how many volumes are worked on at once; 16 if 0.
	Workers int
}

// Agent is the CSI side of one node.
type Agent struct {
	cfg     Config
	drivers *drivers
	info    *nodeinfo.Manager
	source  *desired.Source
	queue   workqueue.TypedRateLimitingInterface[volume.Key]
	changes *signal
	// events is nil where the recorder is another's.
	events eventrecord.EventBroadcaster

	// Set by Run before anything that reads them is started.
	store  *record.Store
	runner *apply.Runner

	mu sync.Mutex
	// volumes is how far each volume is. Guarded by mu.
	volumes map[volume.Key]progress
	// released are the pods that the runtime released in this run, until their
	// objects are gone. Guarded by mu.
	released map[string]bool
}

// New makes an Agent; Run makes it work.
func New(cfg Config) (*Agent, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("node agent: NodeName is empty")
	case !filepath.IsAbs(cfg.Root) || filepath.Clean(cfg.Root) == "/":
		return nil, fmt.Errorf("node agent: Root %q: want an absolute path of a folder", cfg.Root)
	case cfg.Client == nil || cfg.Host == nil:
		return nil, errors.New("node agent: Client and Host are both needed")
	}
	cfg.Root = filepath.Clean(cfg.Root)
	if cfg.PodVolumesSocket == "" {
		cfg.PodVolumesSocket = filepath.Join(cfg.Root, "berth", "podvolumes.sock")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Workers == 0 {
		cfg.Workers = defaultWorkers
	}
	a := &Agent{
		cfg:      cfg,
		changes:  newSignal(),
		volumes:  make(map[volume.Key]progress),
		released: make(map[string]bool),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[volume.Key](firstBackoff, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[volume.Key]{Clock: cfg.Clock}),
	}
	if a.cfg.Recorder == nil {
		a.events = eventrecord.NewBroadcaster()
		a.cfg.Recorder = a.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "berth-agent", Host: cfg.NodeName})
	}
	a.info = nodeinfo.New(nodeinfo.Config{NodeName: cfg.NodeName, Client: cfg.Client, Recorder: a.cfg.Recorder, Clock: cfg.Clock})
	a.drivers = &drivers{info: a.info, changed: a.driverChanged, options: cfg.ClientOptions, byName: make(map[string]*csiclient.Client)}
	a.source = desired.NewSource(cfg.NodeName, cfg.Client, a.desiredChanged)
	return a, nil
}

// PodVolumesSocket is where pod runtimes ask.
func (a *Agent) PodVolumesSocket() string { return a.cfg.PodVolumesSocket }

// PluginDir is the folder in which drivers register.
func (a *Agent) PluginDir() string { return filepath.Join(a.cfg.Root, "plugins_registry") }

// Run serves the node until ctx ends, and then returns nil; mounts and
// registrations stay as they are. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("node", a.cfg.NodeName))
	release, err := lockRoot(a.cfg.Root)
	if err != nil {
		return err
	}
	defer func() {
		if err := release(); err != nil {
			klog.FromContext(ctx).Error(err, "unlocking the root failed")
		}
	}()
	if err := refuseKubelet(ctx, a.cfg.Root); err != nil {
		return err
	}
	if err := a.openRecord(ctx); err != nil {
		return err
	}
	defer a.drivers.closeAll(ctx)
	if a.events != nil {
		a.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.cfg.Client.CoreV1().Events(corev1.NamespaceAll)})
		defer a.events.Shutdown()
	}

	group, ctx := errgroup.WithContext(ctx)
	a.runner = apply.New(apply.Config{
		Root: a.cfg.Root, NodeName: a.cfg.NodeName, Record: a.store, Mounts: a.cfg.Host,
		Secrets: a.cfg.Client.CoreV1(), Claims: a.cfg.Client.CoreV1(),
	})
	group.Go(func() error { <-ctx.Done(); a.queue.ShutDown(); return nil })
	group.Go(func() error { a.info.Run(ctx); return nil })
	group.Go(func() error { a.source.Run(ctx); return nil })
	for range a.cfg.Workers {
		group.Go(func() error { a.work(ctx); return nil })
	}
	group.Go(func() error { return registrar.NewWatcher(a.PluginDir(), a.drivers, a.cfg.Clock).Run(ctx) })
	group.Go(func() error { return podvolumes.Serve(ctx, a.cfg.PodVolumesSocket, a) })
	return group.Wait()
}

func (a *Agent) openRecord(ctx context.Context) error {
	boot := a.cfg.BootID
	if boot == "" {
		text, err := os.ReadFile(bootIDFile)
		if err != nil {
			return fmt.Errorf("reading the boot id: %w", err)
		}
		boot = strings.TrimSpace(string(text))
	}
	store, asides, err := record.Open(filepath.Join(a.cfg.Root, "berth", "record"), boot)
	if err != nil {
		return err
	}
	for _, aside := range asides {
		klog.FromContext(ctx).Error(aside.Err, "a volume record cannot be read and is put aside; what it held must be unmounted by hand", "path", aside.Path)
	}
	a.store = store
	return nil
}

// signal tells waiters that something changed: they take the channel, look,
// and wait for the channel to be closed.
type signal struct {
	mu sync.Mutex
	ch chan struct{} // guarded by mu
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

func (s *signal) send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}
