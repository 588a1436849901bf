package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/host/process"
)

// startTimeout bounds a whole start.
const startTimeout = 3 * time.Minute

// waitingAfter is how long a step may be silent.
const waitingAfter = 2 * time.Second

// ErrNotRoot says that the sandbox needs root.
var ErrNotRoot = errors.New("berth-sandbox makes loop devices and mounts, which needs root: run it with sudo")

// Cluster is a running sandbox.
type Cluster struct {
	options Options
	dir     *dataDir
	machine host.Host
	began   time.Time
	nodes   []Node
	ports   portSet
	access  access
	rest    *rest.Config
	client  kubernetes.Interface
	// keeping is what KeepRunning runs under.
	keeping     context.Context
	stopKeeping context.CancelFunc
	keepers     sync.WaitGroup

	progress sync.Mutex // held while Options.Progress is told

	mu        sync.Mutex
	processes []*Process // guarded by mu; in the order of their start
	ready     bool       // guarded by mu
	stopped   bool       // guarded by mu

	stateMu sync.Mutex // held while the state file is written
}

type portSet struct {
	etcd, etcdPeer, apiserver, controllerManager, scheduler, stockScheduler int
	extender, extenderHTTP                                                  int
}

// Start brings a cluster up and returns when it is ready: the API server and
// controllers serve, every node is Ready and the bundled driver is registered
// on it. What an earlier sandbox left in the data folder is swept away first. On
// an error, ctx's end included, nothing is left behind.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkPrograms(options); err != nil {
		return nil, err
	}
	machine := options.Host
	if machine == nil {
		machine = realHost()
	}
	dir, err := holdDataDir(options.DataDir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: options, dir: dir, machine: machine, began: time.Now()}
	c.keeping, c.stopKeeping = context.WithCancel(context.WithoutCancel(ctx))
	c.nodes = dir.nodeList(options.Nodes, options.Zones)
	startCtx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the sandbox was not ready after %s", startTimeout))
	defer cancel()
	if err := c.start(startCtx); err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.step("data folder "+c.dir.dir, func() error { return c.dir.sweep(ctx, c.machine) }); err != nil {
		return err
	}
	if err := c.writeState(); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.makePools(groupCtx) })
	group.Go(func() error {
		if err := c.startControlPlane(groupCtx); err != nil {
			return err
		}
		return c.startRest(groupCtx)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := c.awaitNodes(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	c.ready = true
	c.mu.Unlock()
	return c.writeState()
}

// checkPrograms names a missing program before anything is changed.
func checkPrograms(o Options) error {
	need := []string{"berth-sandbox"}
	if o.has(Scheduler) {
		need = append(need, o.schedulerName())
	}
	if o.has(Agents) {
		need = append(need, "berth-agent")
	}
	for _, name := range need {
		if _, err := os.Stat(filepath.Join(o.BinDir, name)); err != nil {
			return fmt.Errorf("bin-dir %s has no %s: build it with `make build-%s`, or name another folder with --bin-dir", o.BinDir, name, name)
		}
	}
	return nil
}

func (c *Cluster) program(name string) string { return filepath.Join(c.options.BinDir, name) }

// launch starts a process of the cluster and notes it.
func (c *Cluster) launch(name string, grace time.Duration, program string, args ...string) (*Process, error) {
	spec := process.Spec{
		Name: name, Path: program, Args: args,
		Marker: c.dir.marker(), Dir: c.dir.dir, Log: c.dir.log(name),
	}
	p, err := launch(spec, grace, c.noteChange)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	c.noteChange()
	if c.options.KeepRunning {
		c.keepers.Go(func() { p.keep(c.keeping) })
	}
	return p, nil
}

// Stop ends the cluster and leaves nothing behind. It may be called again.
func (c *Cluster) Stop(ctx context.Context) error {
	c.stopKeeping()
	// Nothing may start, or write the state, from here on.
	c.keepers.Wait()
	c.mu.Lock()
	processes, stopped := c.processes, c.stopped
	c.processes, c.stopped = nil, true
	c.mu.Unlock()
	if stopped {
		return nil
	}
	// In the reverse order of their start, so that none sees a server vanish
	// before itself; those of one kind side by side.
	var errs []error
	for _, batch := range stopOrder(processes) {
		group, groupCtx := errgroup.WithContext(ctx)
		for _, p := range batch {
			group.Go(func() error { return p.end(groupCtx) })
		}
		errs = append(errs, group.Wait())
	}
	if err := c.dir.sweep(ctx, c.machine); err != nil {
		// What is left stays marked, for the next start or down.
		return errors.Join(append(errs, err, c.dir.lockFile.Unlock())...)
	}
	return errors.Join(append(errs, c.dir.remove())...)
}

// stopOrder groups processes: those of the nodes and the controllers first,
// then kube-apiserver, then etcd.
func stopOrder(processes []*Process) [][]*Process {
	var clients, servers, stores []*Process
	for _, p := range processes {
		switch p.Name() {
		case "kube-apiserver":
			servers = append(servers, p)
		case "etcd":
			stores = append(stores, p)
		default:
			clients = append(clients, p)
		}
	}
	return [][]*Process{clients, servers, stores}
}

// Process finds a process by its name: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, berth-scheduler or berth-extender and
// ExtenderScheduler, or Node.AgentProcess and Node.RuntimeProcess.
func (c *Cluster) Process(name string) (*Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("process %q: the sandbox has none of this name", name)
}

// Processes lists the processes in the order of their start.
func (c *Cluster) Processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.processes)
}

// Nodes lists the nodes.
func (c *Cluster) Nodes() []Node { return slices.Clone(c.nodes) }

// Node finds a node by its name.
func (c *Cluster) Node(name string) (Node, error) {
	for _, n := range c.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("node %q: the sandbox has none of this name", name)
}

// RESTConfig is a configuration for the cluster's administrator.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// Kubeconfig is the file for the cluster's administrator.
func (c *Cluster) Kubeconfig() string { return c.dir.kubeconfig() }

// DataDir is the folder that holds everything.
func (c *Cluster) DataDir() string { return c.dir.dir }

// Machine is the host that the sandbox works on.
func (c *Cluster) Machine() host.Host { return c.machine }

// step runs one step and tells of it.
func (c *Cluster) step(name string, run func() error) error {
	c.tell(Step{Name: name, State: StepStarted})
	finished := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		ticker := time.NewTicker(waitingAfter)
		defer ticker.Stop()
		for {
			select {
			case <-finished:
				return
			case <-ticker.C:
				c.tell(Step{Name: name, State: StepWaiting})
			}
		}
	}()
	err := run()
	close(finished)
	<-told
	if err != nil {
		c.tell(Step{Name: name, State: StepFailed, Err: err})
		return fmt.Errorf("%s: %w", name, err)
	}
	c.tell(Step{Name: name, State: StepDone})
	return nil
}

func (c *Cluster) tell(s Step) {
	c.progress.Lock()
	defer c.progress.Unlock()
	s.Elapsed = time.Since(c.began)
	c.options.Progress(s)
}
