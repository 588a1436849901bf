package csitest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-storage/berth/volume"
)

// Pool is the UUID of the driver's pool.
const Pool = "6f1c2b1e-3b0a-4c55-9a0e-0d7c1f0f2a11"

// Volume is a volume that the driver holds.
type Volume struct {
	ID, Name string
	Size     int64
}

// Driver is a CSI controller with one pool. Its calls are idempotent as the
// CSI spec demands; volumes live as long as the Driver, and so survive the
// controllers under test.
type Driver struct {
	// Steps disturbs calls; nil disturbs none.
	Steps *Steps
	// Fault is the code of a disturbed call; OK means Unavailable.
	Fault codes.Code
	// Refuse, if set, may answer a call instead of the driver.
	Refuse func(call string, size int64) error
	// Total is the pool's size in bytes; 0 means no bound.
	Total int64
	// Topology is where volumes can be reached.
	Topology map[string]string
	// NodeExpansion is the answer of ControllerExpandVolume.
	NodeExpansion bool
	// Lacks are the capabilities that the driver does not have.
	Lacks []csi.ControllerServiceCapability_RPC_Type

	mu         sync.Mutex
	volumes    map[string]*Volume // guarded by mu, by name
	allocation int64              // guarded by mu
	everMade   int                // guarded by mu
	changed    chan struct{}      // guarded by mu
}

// ControllerHas reports every capability but those in Lacks.
func (d *Driver) ControllerHas(_ context.Context, c csi.ControllerServiceCapability_RPC_Type) (bool, error) {
	return !slices.Contains(d.Lacks, c), nil
}

// CreateVolume makes a volume, or finds the one of the name.
func (d *Driver) CreateVolume(_ context.Context, in *csi.CreateVolumeRequest, _ ...grpc.CallOption) (*csi.CreateVolumeResponse, error) {
	size := in.GetCapacityRange().GetRequiredBytes()
	var out *csi.CreateVolumeResponse
	err := d.do("CreateVolume", size, func() error {
		v := d.volumes[in.GetName()]
		if v != nil && v.Size < size {
			return status.Errorf(codes.AlreadyExists, "volume %s has %d bytes", v.Name, v.Size)
		}
		if v == nil {
			if d.Total > 0 && d.used()+size > d.Total {
				return status.Errorf(codes.ResourceExhausted, "%d bytes free", d.Total-d.used())
			}
			v = &Volume{ID: Pool + "/" + in.GetName(), Name: in.GetName(), Size: size}
			if d.volumes == nil {
				d.volumes = make(map[string]*Volume)
			}
			d.volumes[v.Name] = v
			d.everMade++
			d.allocated()
		}
		out = &csi.CreateVolumeResponse{Volume: &csi.Volume{
			VolumeId: v.ID, CapacityBytes: v.Size,
			VolumeContext: map[string]string{
				volume.ContextPool: Pool, volume.ContextAllocation: strconv.FormatInt(d.allocation, 10),
			},
			AccessibleTopology: []*csi.Topology{{Segments: maps.Clone(d.Topology)}},
		}}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DeleteVolume deletes a volume; one that does not exist is deleted.
func (d *Driver) DeleteVolume(_ context.Context, in *csi.DeleteVolumeRequest, _ ...grpc.CallOption) (*csi.DeleteVolumeResponse, error) {
	err := d.do("DeleteVolume", 0, func() error {
		for name, v := range d.volumes {
			if v.ID == in.GetVolumeId() {
				delete(d.volumes, name)
				d.allocated()
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerExpandVolume grows a volume; a larger one stays as it is.
func (d *Driver) ControllerExpandVolume(_ context.Context, in *csi.ControllerExpandVolumeRequest, _ ...grpc.CallOption) (*csi.ControllerExpandVolumeResponse, error) {
	size := in.GetCapacityRange().GetRequiredBytes()
	var out *csi.ControllerExpandVolumeResponse
	err := d.do("ControllerExpandVolume", size, func() error {
		for _, v := range d.volumes {
			if v.ID != in.GetVolumeId() {
				continue
			}
			if d.Total > 0 && d.used()-v.Size+size > d.Total {
				return status.Errorf(codes.OutOfRange, "%d bytes free", d.Total-d.used())
			}
			if size > v.Size {
				v.Size = size
				d.allocated()
			}
			out = &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: d.NodeExpansion}
			return nil
		}
		return status.Errorf(codes.NotFound, "no volume %s", in.GetVolumeId())
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// do performs a call under the lock, refused or disturbed as set.
func (d *Driver) do(call string, size int64, effect func() error) error {
	code := d.Fault
	if code == codes.OK {
		code = codes.Unavailable
	}
	steps := d.Steps
	if steps == nil {
		steps = &Steps{}
	}
	return steps.Do(call, status.Error(code, "disturbed"), func() error {
		if d.Refuse != nil {
			if err := d.Refuse(call, size); err != nil {
				return err
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return effect()
	})
}

// used and allocated need mu.
func (d *Driver) used() int64 {
	var sum int64
	for _, v := range d.volumes {
		sum += v.Size
	}
	return sum
}

func (d *Driver) allocated() {
	d.allocation++
	if d.changed != nil {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

// Volumes are the volumes that exist, by name.
func (d *Driver) Volumes() []Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Volume, 0, len(d.volumes))
	for _, name := range slices.Sorted(maps.Keys(d.volumes)) {
		out = append(out, *d.volumes[name])
	}
	return out
}

// Add puts a volume into the pool, as if it had been made earlier.
func (d *Driver) Add(name string, size int64) (id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.volumes == nil {
		d.volumes = make(map[string]*Volume)
	}
	d.volumes[name] = &Volume{ID: Pool + "/" + name, Name: name, Size: size}
	d.allocated()
	return Pool + "/" + name
}

// EverMade counts the volumes that CreateVolume made, deleted ones included.
func (d *Driver) EverMade() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.everMade
}

// Capacity is the pool's, for controller/capacity.
func (d *Driver) Capacity(context.Context, map[string]string) (volume.PoolCapacity, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return volume.PoolCapacity{
		Pool: Pool, Allocation: d.allocation, Available: d.Total - d.used(), Total: d.Total,
	}, nil
}

// Changed signals that Capacity is another than before.
func (d *Driver) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed == nil {
		d.changed = make(chan struct{}, 1)
	}
	return d.changed
}

// String names the volumes, for failures.
func (v Volume) String() string { return fmt.Sprintf("%s (%d)", v.Name, v.Size) }
