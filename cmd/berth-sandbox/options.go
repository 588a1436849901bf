package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeversion "k8s.io/component-base/version"

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
	without         []string
}

func addDataDir(fs *pflag.FlagSet, dir *string) {
	def := sandbox.DefaultDataDir
	if env := os.Getenv(envDataDir); env != "" {
		def = env
	}
	fs.StringVar(dir, "data-dir", def, "folder of the sandbox, removed with it [$"+envDataDir+"]")
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	addDataDir(fs, &o.dataDir)
	fs.StringVar(&o.binDir, "bin-dir", os.Getenv(envBinDir), "folder of berth-sandbox, berth-scheduler and berth-agent; default: that of the running program [$"+envBinDir+"]")
	fs.IntVar(&o.nodes, "nodes", 3, "number of nodes; 0 is a control plane alone")
	fs.IntVar(&o.zones, "zones", 2, "number of zones that the nodes are spread over")
	fs.StringSliceVar(&o.without, "without", nil, "components to leave out: "+strings.Join(optional(), ", "))
	fs.StringVar(&o.poolSize, "pool-size", "1Gi", "size of each node's storage pool; it takes disk space only as it is filled")
}

// args is the flags again, for another process.
func (o *options) args() []string {
	return []string{
		"--data-dir=" + o.dataDir, "--bin-dir=" + o.binDir, "--pool-size=" + o.poolSize,
		fmt.Sprintf("--nodes=%d", o.nodes), fmt.Sprintf("--zones=%d", o.zones),
		"--without=" + strings.Join(o.without, ","),
	}
}

func (o *options) sandbox() (sandbox.Options, error) {
	size, err := resource.ParseQuantity(o.poolSize)
	if err != nil {
		return sandbox.Options{}, fmt.Errorf("pool-size %q: give a quantity such as 2Gi: %w", o.poolSize, err)
	}
	so := sandbox.Options{
		DataDir: o.dataDir, BinDir: o.binDir, Nodes: o.nodes, Zones: o.zones, PoolSize: size.Value(),
	}
	for _, name := range o.without {
		if !slices.Contains(optional(), name) {
			return so, fmt.Errorf("without %q: the components that can be left out are %s", name, strings.Join(optional(), ", "))
		}
		so.Skip = append(so.Skip, sandbox.Component(name))
	}
	return so, nil
}

// optional names the components that can be left out.
func optional() []string {
	var names []string
	for _, c := range sandbox.Components() {
		names = append(names, string(c))
	}
	return names
}

// kubernetesVersion is the version of the Kubernetes components inside.
func kubernetesVersion() string { return kubeversion.Get().GitVersion }
