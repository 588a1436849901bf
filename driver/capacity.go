package driver

import (
	"context"
	"sync"
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

	mu sync.Mutex
	// told is what Capacity said last of each pool, by UUID, in bytes. Guarded by mu.
	told map[string]int64
}

// Capacities follows the driver's pools from now on.
func (d *Driver) Capacities() *Capacities {
	c := &Capacities{driver: d, changed: make(chan struct{}, 1), told: make(map[string]int64)}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[capacity.Pool] = capacity.Available
	return capacity, nil
}

// Watch reads the pools at every tick until ctx ends, and signals where Capacity
// would say something else than it said last: other users of a pool's
// filesystem took or freed space, of which the kernel sends no event.
func (c *Capacities) Watch(ctx context.Context, clk clock.WithTicker, every time.Duration) {
	tick := clk.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		for _, p := range c.driver.pools {
			now, err := p.Capacity(ctx)
			if err != nil {
				klog.FromContext(ctx).Error(err, "reading a pool's capacity failed", "pool", p.Name())
				continue
			}
			if c.isNews(now) {
				c.signal()
			}
		}
	}
}

// isNews reports whether Capacity said something else. What nobody asked for is
// no news.
func (c *Capacities) isNews(now volume.PoolCapacity) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	told, asked := c.told[now.Pool]
	return asked && told != now.Available
}

func (c *Capacities) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Changed has a signal after each change of any pool since the last receive.
func (c *Capacities) Changed() <-chan struct{} { return c.changed }
