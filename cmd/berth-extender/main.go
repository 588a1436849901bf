// Command berth-extender places the pods of a stock kube-scheduler by where their
// volumes can live: it is a scheduler extender. Beside that, the replica that holds
// the Lease berth-cluster does the work of controller/cluster.
package main

import (
	"context"
	"os"

	"github.com/berth-storage/berth/internal/daemon"
)

func main() { os.Exit(daemon.Main(spec(newOptions()))) }

func spec(o *options) daemon.Spec {
	return daemon.Spec{
		Name:  "berth-extender",
		Short: "Places the pods of a stock kube-scheduler by where their volumes can live",
		Long: `berth-extender is a scheduler extender: it judges nodes, and binds pods with their
volumes, for an unmodified kube-scheduler whose configuration names it. Beside
that, one replica assigns claims of classes with immediate binding to nodes.`,
		Common:   o.common,
		AddFlags: o.addFlags,
		Validate: o.validate,
		Run:      func(ctx context.Context, e *daemon.Endpoints) error { return run(ctx, o, e) },
	}
}
