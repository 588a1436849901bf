package driver

import (
	"context"

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
		p.OnChange(func() {
			select {
			case c.changed <- struct{}{}:
			default:
			}
		})
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

// Changed has a signal after each change of any pool since the last receive.
func (c *Capacities) Changed() <-chan struct{} { return c.changed }
