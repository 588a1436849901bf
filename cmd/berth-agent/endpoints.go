package main

import (
	"context"
	"errors"
	"sync"

	csimetrics "github.com/kubernetes-csi/csi-lib-utils/metrics"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/internal/daemon"
)

// ready says what the agent must have to serve its node: a driver that answers,
// and controllers that have read the cluster.
func ready(endpoints *daemon.Endpoints, calls *csiclient.Client, mgr manager.Manager) {
	endpoints.Ready("driver", calls.Probe)
	endpoints.Ready("controllers", func(context.Context) error {
		select {
		// Without leader election: the caches are filled and the controllers started.
		case <-mgr.Elected():
			return nil
		default:
			return errors.New("the API server has not been read yet; if this stays, see the log for requests that it refuses")
		}
	})
	endpoints.Started()
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
