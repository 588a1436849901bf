package driver

import (
	"context"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/volume"
)

// Capacities tells what a class of volumes can still get on this node, and when
// that changes. It says more than GetCapacity, which has no field for the pool
// and its count of allocations.
type Capacities struct {
	driver  *Driver
	changed chan struct{}
}

// Capacities follows the driver's pools from now on.
func (d *Driver) Capacities() *Capacities {
	c := &Capacities{driver: d, changed: make(chan struct{}, 1)}
	for _, p := range d.pools {
		p.OnChange(c.signal)
	}
	return c
}

// Capacity reads the pool that a StorageClass with these parameters uses. A pool
// that this node lacks has no capacity here. The error has a gRPC code.
func (c *Capacities) Capacity(ctx context.Context, parameters map[string]string) (volume.PoolCapacity, error) {
	name, err := poolParameter(parameters)
	if err != nil {
		return volume.PoolCapacity{}, err
	}
	p, err := c.driver.poolNamed(name)
	if err != nil {
		return volume.PoolCapacity{}, nil
	}
	capacity, err := p.Capacity(ctx)
	if err != nil {
		return volume.PoolCapacity{}, statusOf(err)
	}
	return capacity, nil
}

// Watch reads the pools at every tick until ctx ends, and signals a change that
// no pool made itself: other users of its filesystem took or freed space, of
// which the kernel sends no event.
func (c *Capacities) Watch(ctx context.Context, clk clock.WithTicker, every time.Duration) {
	tick := clk.NewTicker(every)
	defer tick.Stop()
	seen := make(map[string]int64)
	for {
		for _, p := range c.driver.pools {
			now, err := p.Capacity(ctx)
			if err != nil {
				klog.FromContext(ctx).Error(err, "reading a pool's capacity failed", "pool", p.Name())
				continue
			}
			if before, known := seen[p.UUID()]; known && before != now.Available {
				c.signal()
			}
			seen[p.UUID()] = now.Available
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
	}
}

func (c *Capacities) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Changed has a signal after each change of any pool since the last receive.
func (c *Capacities) Changed() <-chan struct{} { return c.changed }
