// Package driver is the bundled CSI driver, local.csi.berth.dev: volumes in
// pools of the node that it runs on. It serves the Identity, Controller and
// Node services of the CSI specification, v1.13, on one unix socket.
//
// It keeps no record of its own: what a volume is stands in its pool, what is
// attached and mounted is read from the machine. So every call can be repeated
// after a crash, and Unpublish, Unstage and Delete work when everything else is
// lost. gRPC codes are made in this package and nowhere below it.
package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/volume"
)

// Host is what the driver needs of the machine.
type Host interface {
	host.Mounts
	host.Filesystems
	BlockSize(device string) (int64, error)
}

// Config is all that a driver is made from.
type Config struct {
	// NodeID is the name of the node, also its id towards the CO.
	NodeID string
	// Pools are open; the driver neither opens nor closes them. The first is
	// the one of StorageClasses that name none.
	Pools []pool.Pool
	// Host is the machine.
	Host Host
	// Topology gives the node's segments beside volume.TopologyNodeKey, from
	// its labels. It is asked for each NodeGetInfo and may wait; nil means that
	// there are none.
	Topology func(ctx context.Context) (map[string]string, error)
	// MaxVolumes is how many volumes the node may have published, 0 for no limit.
	MaxVolumes int64
	// Version is the driver's, as GetPluginInfo reports it.
	Version string
}

// Driver serves the CSI services for the pools of one node.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	nodeID     string
	version    string
	maxVolumes int64
	host       Host
	topology   func(ctx context.Context) (map[string]string, error)
	pools      []pool.Pool
	locks      keyLock
}

var (
	_ csi.IdentityServer   = (*Driver)(nil)
	_ csi.ControllerServer = (*Driver)(nil)
	_ csi.NodeServer       = (*Driver)(nil)
)

// New checks a configuration and makes a driver of it.
func New(c Config) (*Driver, error) {
	var errs []error
	if c.NodeID == "" {
		errs = append(errs, errors.New("field NodeID: must be the node's name"))
	}
	if c.Host == nil {
		errs = append(errs, errors.New("field Host: must be given"))
	}
	if len(c.Pools) == 0 {
		errs = append(errs, errors.New("field Pools: at least one pool is needed to put volumes into"))
	}
	if c.MaxVolumes < 0 {
		errs = append(errs, fmt.Errorf("field MaxVolumes: %d is below 0; 0 means no limit", c.MaxVolumes))
	}
	names, uuids := make(map[string]bool), make(map[string]bool)
	for _, p := range c.Pools {
		if names[p.Name()] || uuids[p.UUID()] {
			errs = append(errs, fmt.Errorf("field Pools: %q (%s) is there twice", p.Name(), p.UUID()))
		}
		names[p.Name()], uuids[p.UUID()] = true, true
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("configuring the driver: %w", err)
	}
	d := &Driver{
		nodeID: c.NodeID, version: c.Version, maxVolumes: c.MaxVolumes,
		host: c.Host, topology: c.Topology, pools: c.Pools,
	}
	if d.topology == nil {
		d.topology = func(context.Context) (map[string]string, error) { return nil, nil }
	}
	if d.version == "" {
		d.version = "unknown"
	}
	return d, nil
}

// poolNamed finds a pool by its configured name; "" is the default pool.
func (d *Driver) poolNamed(name string) (pool.Pool, error) {
	if name == "" {
		return d.pools[0], nil
	}
	for _, p := range d.pools {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, refuse(codes.InvalidArgument, "parameter %s: node %s has no pool %q", volume.ParameterPool, d.nodeID, name)
}

// find gives the pool and the name of a volume id. It does not look whether the
// volume exists. An id of another form, or of a pool that is not on this node, is
// a volume that does not exist here: NotFound.
func (d *Driver) find(volumeID string) (pool.Pool, string, error) {
	id, err := volume.ParseID(volumeID)
	if err != nil {
		return nil, "", refuse(codes.NotFound, "%w", err)
	}
	for _, p := range d.pools {
		if p.UUID() == id.Pool {
			return p, id.Name, nil
		}
	}
	return nil, "", refuse(codes.NotFound, "volume %s: pool %s is not on node %s", volumeID, id.Pool, d.nodeID)
}

// lookup finds an existing volume.
func (d *Driver) lookup(ctx context.Context, volumeID string) (pool.Pool, pool.Volume, error) {
	p, name, err := d.find(volumeID)
	if err != nil {
		return nil, pool.Volume{}, err
	}
	v, err := p.Lookup(ctx, name)
	if err != nil {
		return nil, pool.Volume{}, fmt.Errorf("volume %s: %w", volumeID, err)
	}
	return p, v, nil
}

// segments are the topology segments of every volume that this driver makes: the
// node alone, so that a node that gets another zone label keeps its volumes.
func (d *Driver) segments() map[string]string {
	return map[string]string{volume.TopologyNodeKey: volume.NodeLabelValue(d.nodeID)}
}
