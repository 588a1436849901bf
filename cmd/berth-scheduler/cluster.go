package main

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

// clusterWork runs controller/cluster beside the scheduler.
type clusterWork struct {
	enabled   bool
	namespace string
}

func newClusterWork() *clusterWork {
	return &clusterWork{enabled: true, namespace: "berth-system"}
}

func (w *clusterWork) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&w.enabled, "cluster-work", w.enabled,
		"Assign claims of classes with immediate binding to nodes, release claims from nodes that are gone, and bind the claims of pods that were put on a node without a scheduler, in the replica that holds the Lease "+cluster.LeaseName+
			". The Lease has the durations of the scheduler's own leader election (--leader-elect-lease-duration, -renew-deadline, -retry-period, or leaderElection in --config).")
	fs.StringVar(&w.namespace, "cluster-lease-namespace", w.namespace, "Namespace of the Lease "+cluster.LeaseName+".")
}

func (w *clusterWork) validate(p *daemon.Problems) {
	if problems := validation.IsDNS1123Label(w.namespace); w.enabled && len(problems) > 0 {
		p.Flag("cluster-lease-namespace", "%q is no name of a namespace: %s", w.namespace, strings.Join(problems, "; "))
	}
}

// start starts the work. The channel is closed when it has ended, after ctx, and
// its Lease is given back.
func (w *clusterWork) start(ctx context.Context, access *rest.Config, election componentconfig.LeaderElectionConfiguration) <-chan struct{} {
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
