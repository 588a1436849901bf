// Package clusterwork runs controller/cluster inside of a program whose own work is
// another: its flags, its start, and its end before the program's.
package clusterwork

import (
	"context"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	componentconfig "k8s.io/component-base/config"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/controller/cluster"
	"github.com/berth-storage/berth/internal/daemon"
	"github.com/berth-storage/berth/volume"
)

// Work is the cluster-scoped work beside another.
type Work struct {
	enabled   bool
	namespace string
}

// New is the work with its defaults.
func New() *Work { return &Work{enabled: true, namespace: "berth-system"} }

// AddFlags adds --cluster-work and --cluster-lease-namespace. durations says where
// those of the Lease come from.
func (w *Work) AddFlags(fs *pflag.FlagSet, durations string) {
	fs.BoolVar(&w.enabled, "cluster-work", w.enabled,
		"Assign claims of classes with immediate binding to nodes, release claims from nodes that are gone, and bind the claims of pods that were put on a node without a scheduler, in the replica that holds the Lease "+cluster.LeaseName+
			". "+durations)
	fs.StringVar(&w.namespace, "cluster-lease-namespace", w.namespace, "Namespace of the Lease "+cluster.LeaseName+".")
}

// Validate adds what is wrong with the flags.
func (w *Work) Validate(p *daemon.Problems) {
	if problems := validation.IsDNS1123Label(w.namespace); w.enabled && len(problems) > 0 {
		p.Flag("cluster-lease-namespace", "%q is no name of a namespace: %s", w.namespace, strings.Join(problems, "; "))
	}
}

// Start starts the work. The channel is closed when it has ended, after ctx, and
// its Lease is given back. Durations that are 0 have controller/cluster's default.
func (w *Work) Start(ctx context.Context, access *rest.Config, election componentconfig.LeaderElectionConfiguration) <-chan struct{} {
	ended := make(chan struct{})
	if !w.enabled {
		close(ended)
		return ended
	}
	go func() {
		defer close(ended)
		err := cluster.Run(ctx, access, cluster.Config{
			Driver: volume.DriverName, Namespace: w.namespace,
			LeaseDuration: election.LeaseDuration.Duration,
			RenewDeadline: election.RenewDeadline.Duration,
			RetryPeriod:   election.RetryPeriod.Duration,
		})
		if err != nil {
			klog.FromContext(ctx).Error(err, "cluster-scoped work cannot run")
		}
	}()
	return ended
}
