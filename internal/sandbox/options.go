package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/volume"
)

// DefaultDataDir is short, because the paths of unix sockets below it may have
// at most 107 bytes.
const DefaultDataDir = "/var/lib/berth-sandbox"

// DefaultPoolSize is the size of each node's pool, in bytes.
const DefaultPoolSize = volume.GiB

// poolSizeMin is what mkfs.xfs asks for (xfsprogs, mkfs/xfs_mkfs.c: 300 MiB),
// rounded up.
const poolSizeMin = 320 * volume.MiB

// socketPathMax is the longest path of a unix socket (unix(7): sun_path has 108
// bytes, the last is NUL).
const socketPathMax = 107

// longestSocket is the longest socket path below the data folder: the bundled
// driver's, on a node with a three-digit number.
const longestSocket = "/nodes/node-999/root/plugins_registry/local.csi.berth.dev-reg.sock"

// nodesMax bounds the number of nodes: each is three processes.
const nodesMax = 100

// Component is a part of the cluster that can be left out.
type Component string

// The parts that can be left out. etcd and kube-apiserver cannot.
const (
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "berth-scheduler"
	StockScheduler    Component = "kube-scheduler"
	Agents            Component = "berth-agent"
	Runtimes          Component = "pod-runtime"
	Manifests         Component = "manifests"
)

// Components are the parts that can be left out.
func Components() []Component {
	return []Component{ControllerManager, Scheduler, StockScheduler, Agents, Runtimes, Manifests}
}

// Options say what to start. The zero value is a control plane alone, in
// DefaultDataDir.
type Options struct {
	// DataDir holds everything; it must not exist, be empty, or be left by an
	// earlier sandbox. It is removed at the end.
	DataDir string
	// BinDir holds berth-sandbox, berth-agent, and berth-scheduler or berth-extender;
	// empty means the folder of the running program.
	BinDir string
	// Nodes is the number of nodes. Without any there are neither schedulers nor
	// manifests.
	Nodes int
	// Zones is the number of zones that the nodes are spread over; 0 means 1.
	Zones int
	// PoolSize is the size of each node's pool in bytes; 0 means
	// DefaultPoolSize. PoolSizes, where it has an entry for a node's name, wins.
	PoolSize  int64
	PoolSizes map[string]int64
	// Extender has pods scheduled by berth-extender, which a stock kube-scheduler of
	// its own asks, in place of berth-scheduler. Scheduler is then the component that
	// stands for both.
	Extender bool
	// Skip leaves components out.
	Skip []Component
	// KeepRunning starts a component again when it ends.
	KeepRunning bool
	// Progress is told of each step; nil means nobody is. It is called from
	// several goroutines, one call at a time.
	Progress func(Step)
	// Host is the machine; nil means the real one.
	Host host.Host
}

// withDefaults fills what was left empty and judges the rest.
func (o Options) withDefaults() (Options, error) {
	if o.DataDir == "" {
		o.DataDir = DefaultDataDir
	}
	dir, err := CleanDataDir(o.DataDir)
	if err != nil {
		return o, err
	}
	o.DataDir = dir
	if o.BinDir == "" {
		exe, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("finding the running program: %w", err)
		}
		o.BinDir = filepath.Dir(exe)
	}
	if o.BinDir, err = filepath.Abs(o.BinDir); err != nil {
		return o, fmt.Errorf("bin-dir %q: %w", o.BinDir, err)
	}
	if o.Zones == 0 {
		o.Zones = 1
	}
	if o.PoolSize == 0 {
		o.PoolSize = DefaultPoolSize
	}
	if o.Progress == nil {
		o.Progress = func(Step) {}
	}
	return o, o.validate()
}

func (o Options) validate() error {
	if o.Nodes < 0 || o.Nodes > nodesMax {
		return fmt.Errorf("nodes %d: give a number from 0 to %d", o.Nodes, nodesMax)
	}
	if o.Zones < 1 || o.Nodes > 0 && o.Zones > o.Nodes {
		return fmt.Errorf("zones %d: give a number from 1 to that of the nodes, %d", o.Zones, o.Nodes)
	}
	for _, size := range append([]int64{o.PoolSize}, mapValues(o.PoolSizes)...) {
		if size < poolSizeMin {
			return fmt.Errorf("pool-size %s: xfs needs at least %s",
				volume.FormatBytes(size), volume.FormatBytes(poolSizeMin))
		}
	}
	if n := len(o.DataDir) + len(longestSocket); n > socketPathMax {
		return fmt.Errorf("data-dir %s is %d bytes too long for the unix sockets below it: give a shorter one",
			o.DataDir, n-socketPathMax)
	}
	return nil
}

func mapValues(m map[string]int64) []int64 {
	values := make([]int64, 0, len(m))
	for _, v := range m {
		values = append(values, v)
	}
	return values
}

func (o Options) has(c Component) bool {
	if slices.Contains(o.Skip, c) {
		return false
	}
	return o.Nodes > 0 || c == ControllerManager
}

// CleanDataDir is the one spelling of a data folder's path: absolute, without
// symbolic links as far as it exists.
func CleanDataDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("data-dir %q: %w", dir, err)
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	} else if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(parent, filepath.Base(abs))
	}
	if abs == "/" || filepath.Dir(abs) == "/" {
		return "", fmt.Errorf("data-dir %q: the folder is removed at the end; give one of its own, such as %s", dir, DefaultDataDir)
	}
	return abs, nil
}

// Step is one step of a start, as it goes on.
type Step struct {
	Name  string
	State StepState
	// Elapsed is the time since the start of the whole.
	Elapsed time.Duration
	// Err is set when State is StepFailed.
	Err error
}

// StepState is how far a step is.
type StepState int

const (
	// StepStarted: it began.
	StepStarted StepState = iota
	// StepWaiting: it takes longer than people like to wait without a word.
	StepWaiting
	// StepDone: it succeeded.
	StepDone
	// StepFailed: it failed; the start fails with it.
	StepFailed
)
