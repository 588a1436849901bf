package main

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-storage/berth/controller/claimwatch"
	"github.com/berth-storage/berth/internal/daemon"
	"github.com/berth-storage/berth/volume"
)

// modeStandalone makes the agent the node's CSI side, for a node that has no
// kubelet.
const modeStandalone = "standalone"

// socketPathMax is the longest path of a unix socket on Linux, in bytes
// (sun_path, less its terminating zero).
const socketPathMax = 107

// options is the whole configuration of the program: each field is one flag.
type options struct {
	mode             string
	nodeName         string
	root             string
	hostRoot         string
	topologyLabels   []string
	poolDir          string
	poolReserve      string
	maxVolumes       int64
	podVolumesSocket string
	namespace        string
	claimWatch       string
	common           *daemon.Common
}

func newOptions() *options {
	return &options{
		mode:           modeStandalone,
		nodeName:       os.Getenv("NODE_NAME"),
		root:           "/var/lib/kubelet",
		hostRoot:       "/",
		topologyLabels: []string{volume.LabelZone},
		poolDir:        "/var/lib/berth/pool",
		poolReserve:    "0",
		namespace:      "berth-system",
		claimWatch:     string(claimwatch.Auto),
		common:         daemon.NewCommon("127.0.0.1:9808"),
	}
}

func (o *options) addFlags(sets *cliflag.NamedFlagSets) {
	fs := sets.FlagSet("node")
	fs.StringVar(&o.mode, "mode", o.mode, "How the agent serves the node. standalone: it is the node's CSI side, for a node without a kubelet.")
	fs.StringVar(&o.nodeName, "node-name", o.nodeName, "Name of this node's Node object. Env: NODE_NAME.")
	fs.StringVar(&o.root, "root", o.root, "Folder of plugins, registrations and pods' volumes, laid out as the kubelet's root.")
	fs.StringVar(&o.hostRoot, "host-root", o.hostRoot, "Where the host's root filesystem is seen; the host's own mkfs, fsck and resize tools run chrooted into it. / outside of a container.")
	fs.StringSliceVar(&o.topologyLabels, "topology-labels", o.topologyLabels, "Labels of the Node that the driver reports as topology beside "+volume.TopologyNodeKey+". The agent waits until the Node has them.")
	fs.StringVar(&o.podVolumesSocket, "podvolumes-socket", o.podVolumesSocket, "Unix socket of the API for the node's pod runtime. Default: <root>/berth/podvolumes.sock.")

	fs = sets.FlagSet("driver")
	fs.StringVar(&o.poolDir, "pool-dir", o.poolDir, "Folder that holds the volumes of this node.")
	fs.StringVar(&o.poolReserve, "pool-reserve", o.poolReserve, "Space of the pool's filesystem that no volume may take, as a quantity (10Gi).")
	fs.Int64Var(&o.maxVolumes, "max-volumes", o.maxVolumes, "Most volumes that the node may hold at once; 0 means no limit.")

	fs = sets.FlagSet("cluster")
	fs.StringVar(&o.namespace, "namespace", o.namespace, "Namespace of the CSIStorageCapacity objects.")
	fs.StringVar(&o.claimWatch, "claim-watch", o.claimWatch, "Which claims the agent watches. all: every one. labelled: those with the label "+volume.LabelNode+" of this node. auto: labelled if the policy "+volume.ClaimLabelPolicy+", which keeps that label, is there at the start and the node's name fits into a label, else all; when the policy is taken away the agent ends, to be started again.")
}

// validate fills in what depends on other flags, and names every flag that is
// wrong, what is wrong, and what to give.
func (o *options) validate(p *daemon.Problems) {
	if o.podVolumesSocket == "" {
		o.podVolumesSocket = filepath.Join(o.root, "berth", "podvolumes.sock")
	}
	switch o.mode {
	case modeStandalone:
	case "kubelet":
		p.Flag("mode", "an agent beside a kubelet is not built yet; %q is for nodes without a kubelet", modeStandalone)
	default:
		p.Flag("mode", "%q is unknown; use %q", o.mode, modeStandalone)
	}
	if problems := validation.IsDNS1123Subdomain(o.nodeName); len(problems) > 0 {
		p.Flag("node-name", "%q is no name of a Node: %s", o.nodeName, strings.Join(problems, "; "))
	}
	if err := claimwatch.Mode(o.claimWatch).Validate(o.nodeName); err != nil {
		p.Flag("claim-watch", "%v", err)
	}
	if problems := validation.IsDNS1123Label(o.namespace); len(problems) > 0 {
		p.Flag("namespace", "%q is no name of a namespace: %s", o.namespace, strings.Join(problems, "; "))
	}
	o.validatePaths(p)
	for _, key := range o.topologyLabels {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			p.Flag("topology-labels", "%q is no label key: %s", key, strings.Join(problems, "; "))
		}
	}
	if q, err := resource.ParseQuantity(o.poolReserve); err != nil || q.Sign() < 0 {
		p.Flag("pool-reserve", "%q is no size; use a quantity such as 10Gi", o.poolReserve)
	}
	if o.maxVolumes < 0 {
		p.Flag("max-volumes", "%d is negative; use 0 for no limit", o.maxVolumes)
	}
}

func (o *options) validatePaths(p *daemon.Problems) {
	for _, f := range []struct{ flag, path string }{
		{"root", o.root}, {"host-root", o.hostRoot}, {"pool-dir", o.poolDir}, {"podvolumes-socket", o.podVolumesSocket},
	} {
		if !filepath.IsAbs(f.path) {
			p.Flag(f.flag, "%q is not an absolute path", f.path)
		}
	}
	for _, f := range []struct{ flag, path string }{{"root", o.driverSocket()}, {"podvolumes-socket", o.podVolumesSocket}} {
		if len(f.path) > socketPathMax {
			p.Flag(f.flag, "the socket %s has %d bytes; Linux takes %d; choose a shorter folder", f.path, len(f.path), socketPathMax)
		}
	}
}

// driverSocket is the bundled driver's CSI socket, where the kubelet's layout
// has it.
func (o *options) driverSocket() string {
	return filepath.Join(o.root, "plugins", volume.DriverName, "csi.sock")
}

// registryDir is the folder of registration sockets.
func (o *options) registryDir() string { return filepath.Join(o.root, "plugins_registry") }

// reserveBytes is --pool-reserve in bytes; validate has seen that it parses.
func (o *options) reserveBytes() int64 {
	q := resource.MustParse(o.poolReserve)
	return q.Value()
}
