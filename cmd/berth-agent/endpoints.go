package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	csimetrics "github.com/kubernetes-csi/csi-lib-utils/metrics"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/internal/daemon"
)

// ready says what the agent must have to serve its node: a driver that answers,
// and controllers that have read the cluster.
func ready(endpoints *daemon.Endpoints, calls *csiclient.Client, mgr manager.Manager) {
	endpoints.Ready("driver", calls.Probe)
	endpoints.Ready("controllers", func(ctx context.Context) error { return synced(ctx, mgr.GetCache()) })
	endpoints.Started()
}

// syncTimeout is how long a question for readiness waits for what is just coming.
const syncTimeout = 500 * time.Millisecond

// synced tells whether the cluster has been read, once, as far as the controllers
// look at it.
func synced(ctx context.Context, c cache.Cache) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	// Every controller reads classes. Before they have asked for anything, a cache
	// of nothing would count as filled.
	classes, err := c.GetInformer(ctx, &storagev1.StorageClass{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching the storage classes: %w", err)
	}
	if !classes.HasSynced() || !c.WaitForCacheSync(ctx) {
		return errors.New("the API server has not been read yet; if this stays, the log has the requests that fail")
	}
	return nil
}

// callMetrics measures the calls to each driver, whoever makes them, as
// csi_sidecar_operations_seconds.
type callMetrics struct {
	endpoints *daemon.Endpoints

	mu sync.Mutex
	// byDriver is guarded by mu.
	byDriver map[string]csimetrics.CSIMetricsManager
}

func newCallMetrics(endpoints *daemon.Endpoints) *callMetrics {
	return &callMetrics{endpoints: endpoints, byDriver: make(map[string]csimetrics.CSIMetricsManager)}
}

// of is the client option that measures calls to the driver.
func (c *callMetrics) of(driver string) []csiclient.Option {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.byDriver[driver]
	if m == nil {
		// The process's own start time is among the program's metrics.
		m = csimetrics.NewCSIMetricsManagerWithOptions(driver, csimetrics.WithProcessStartTime(false))
		c.byDriver[driver] = m
		c.endpoints.Metrics(m.GetRegistry())
	}
	return []csiclient.Option{csiclient.WithMetrics(m)}
}
