package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-storage/berth/internal/sandbox"
)

// envDataDir gives --data-dir its default.
const envDataDir = "BERTH_SANDBOX_DATA_DIR"

// envBinDir gives --bin-dir its default.
const envBinDir = "BERTH_BIN_DIR"

// options are the flags of the commands that start a cluster.
type options struct {
	dataDir, binDir string
	nodes, zones    int
	poolSize        string
	scheduler       string
	without         []string
}

func addDataDir(fs *pflag.FlagSet, dir *string) {
	def := sandbox.DefaultDataDir
	if env := os.Getenv(envDataDir); env != "" {
		def = env
	}
	fs.StringVar(dir, "data-dir", def, "folder of the sandbox, removed with it [$"+envDataDir+"]")
}

// schedulers say what schedules pods by their volumes, by the name of --scheduler:
// the scheduler that pods ask for.
var schedulers = map[string]string{schedulerPlugin: "berth-scheduler", schedulerExtender: "berth-extender"}

const (
	schedulerPlugin   = "plugin"
	schedulerExtender = "extender"
)

func addScheduler(fs *pflag.FlagSet, scheduler *string) {
	fs.StringVar(scheduler, "scheduler", schedulerPlugin, "what schedules pods by their volumes: plugin is berth-scheduler, extender a stock kube-scheduler with berth-extender")
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	addDataDir(fs, &o.dataDir)
	fs.StringVar(&o.binDir, "bin-dir", os.Getenv(envBinDir), "folder of berth-sandbox, berth-agent, and berth-scheduler or berth-extender; default: that of the running program [$"+envBinDir+"]")
	fs.IntVar(&o.nodes, "nodes", 3, "number of nodes; 0 is a control plane alone")
	fs.IntVar(&o.zones, "zones", 2, "number of zones that the nodes are spread over")
	addScheduler(fs, &o.scheduler)
	fs.StringSliceVar(&o.without, "without", nil, "components to leave out: "+strings.Join(optional(), ", "))
	fs.StringVar(&o.poolSize, "pool-size", "1Gi", "size of each node's storage pool; it takes disk space only as it is filled")
}

// args is the flags again, for another process.
func (o *options) args() []string {
	return []string{
		"--data-dir=" + o.dataDir, "--bin-dir=" + o.binDir, "--pool-size=" + o.poolSize,
		fmt.Sprintf("--nodes=%d", o.nodes), fmt.Sprintf("--zones=%d", o.zones),
		"--scheduler=" + o.scheduler, "--without=" + strings.Join(o.without, ","),
	}
}

// sandbox is the cluster that the flags ask for, or all that is wrong with them.
func (o *options) sandbox() (sandbox.Options, error) {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	size, err := resource.ParseQuantity(o.poolSize)
	if err != nil || size.Sign() <= 0 {
		bad("pool-size", "%q is no size; use a quantity such as 2Gi", o.poolSize)
	}
	if o.nodes < 0 {
		bad("nodes", "%d; use 0 for a control plane alone, or more", o.nodes)
	}
	if o.zones < 1 && o.nodes > 0 {
		bad("zones", "%d; nodes lie in zones, use 1 or more", o.zones)
	}
	if schedulers[o.scheduler] == "" {
		bad("scheduler", "%q; use %s or %s", o.scheduler, schedulerPlugin, schedulerExtender)
	}
	so := sandbox.Options{
		DataDir: o.dataDir, BinDir: o.binDir, Nodes: o.nodes, Zones: o.zones, PoolSize: size.Value(),
		Extender: o.scheduler == schedulerExtender,
	}
	for _, name := range o.without {
		if !slices.Contains(optional(), name) {
			bad("without", "%q is none of the components that can be left out: %s", name, strings.Join(optional(), ", "))
		}
		so.Skip = append(so.Skip, sandbox.Component(name))
	}
	return so, errors.Join(errs...)
}

// optional names the components that can be left out.
func optional() []string {
	all := sandbox.Components()
	names := make([]string, 0, len(all))
	for _, c := range all {
		names = append(names, string(c))
	}
	return names
}
