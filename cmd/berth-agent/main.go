// Command berth-agent serves the volumes of one node: the bundled CSI driver,
// its registration, the controllers of the node's own volumes and, standalone,
// the kubelet's side of CSI.
package main

import (
	"context"
	"os"

	"github.com/berth-storage/berth/internal/daemon"
)

func main() { os.Exit(daemon.Main(spec(newOptions()))) }

func spec(o *options) daemon.Spec {
	return daemon.Spec{
		Name:  "berth-agent",
		Short: "Serves the volumes of one node",
		Long: `berth-agent serves the volumes of one node: the bundled CSI driver, its
registration, the controllers of the node's own volumes and, with
--mode=standalone, the kubelet's side of CSI for a node without a kubelet.`,
		Common:   o.common,
		AddFlags: o.addFlags,
		Validate: o.validate,
		Run:      func(ctx context.Context, e *daemon.Endpoints) error { return run(ctx, o, e) },
	}
}
