package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-storage/berth/controller/run"
)

// LeaseName is the one Lease of the cluster-scoped work, whichever programs
// are ready to do it.
const LeaseName = "berth-cluster"

const (
	// pause is between the end of one candidacy and the next.
	pause = 5 * time.Second
	// grace is for a round to end when the program does.
	grace = 5 * time.Second
)

// Run stands for election and does the cluster-scoped work while it leads,
// until ctx ends. A lost Lease, or an API server that is away, does not end it:
// the program that it runs in has other work. The error is for a configuration
// that can never run.
func Run(ctx context.Context, access *rest.Config, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	if access == nil || c.Namespace == "" {
		return errors.New("cluster: the API server's address and Config.Namespace must be set")
	}
	logger := klog.FromContext(ctx)
	for {
		// Every candidacy has its own manager, so that a new leader begins with
		// what the API server says, and with no memory of an earlier term.
		err := stand(ctx, access, c)
		if ctx.Err() != nil {
			if err != nil {
				logger.Error(err, "cluster-scoped work did not end in time")
			}
			return nil
		}
		logger.Error(err, "cluster-scoped work ended, standing for election again")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// stand is one candidacy and, if it succeeds, one term.
func stand(ctx context.Context, access *rest.Config, c Config) error {
	mgr, err := ctrl.NewManager(rest.CopyConfig(access), ctrl.Options{
		Logger:                        klog.FromContext(ctx),
		LeaderElection:                true,
		LeaderElectionID:              LeaseName,
		LeaderElectionNamespace:       c.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &c.LeaseDuration,
		RenewDeadline:                 &c.RenewDeadline,
		RetryPeriod:                   &c.RetryPeriod,
		GracefulShutdownTimeout:       new(grace),
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}: {Transform: slimNode},
				&corev1.Pod{}:  {Transform: slimPod, Field: podsPlaced()},
			},
		},
		// The program serves its own metrics and health.
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// Each candidacy has a controller of the same name. A panic ends the program,
		// with its stack: what it held in memory is in doubt.
		Controller: config.Controller{SkipNameValidation: new(true), RecoverPanic: new(false)},
	})
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	if err := SetupWithManager(ctx, mgr, c); err != nil {
		return err
	}
	return run.Manager(ctx, mgr)
}

// podsPlaced selects the pods that are on a node and have not begun there: few,
// whatever the size of the cluster.
func podsPlaced() fields.Selector {
	return fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)))
}

// slimPod keeps of a pod what is read here.
func slimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, Volumes: p.Spec.Volumes},
		Status: corev1.PodStatus{Phase: p.Status.Phase},
	}, nil
}

// slimNode drops what is large in a node and not read here.
func slimNode(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		n.ManagedFields, n.Status.Images = nil, nil
	}
	return o, nil
}
