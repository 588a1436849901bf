package driver

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/volume"
)

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	caps := make([]*csi.ControllerServiceCapability, 0, len(types))
	for _, t := range types {
		caps = append(caps, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: t},
		}})
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: caps}, nil
}

// CreateVolume implements csi.ControllerServer. The answer's topology is the
// node alone; its context carries the pool and the count of allocations, from
// which the scheduler's ledger is kept.
func (d *Driver) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := required(map[string]string{"name": req.GetName()}); err != nil {
		return nil, err
	}
	u, err := useOfAll(req.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if req.GetVolumeContentSource() != nil {
		return nil, refuse(codes.InvalidArgument, "volume_content_source: snapshots and clones are not supported")
	}
	if len(req.GetMutableParameters()) > 0 {
		return nil, refuse(codes.InvalidArgument, "mutable_parameters: none is known")
	}
	poolName, err := poolParameter(req.GetParameters())
	if err != nil {
		return nil, err
	}
	p, err := d.poolNamed(poolName)
	if err != nil {
		return nil, err
	}
	size, err := sizeOf(req.GetCapacityRange(), u)
	if err != nil {
		return nil, err
	}
	if err := d.checkTopology(ctx, req.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	id := volume.ID{Pool: p.UUID(), Name: volume.SafeName(req.GetName())}
	unlock, err := d.locks.lock(ctx, id.String())
	if err != nil {
		return nil, statusOf(err)
	}
	defer unlock()
	v, err := ensure(ctx, p, id.Name, pool.Spec{Size: size, FSType: u.fsType}, req.GetCapacityRange())
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:           id.String(),
		CapacityBytes:      v.Size,
		AccessibleTopology: []*csi.Topology{{Segments: d.segments()}},
		VolumeContext: map[string]string{
			volume.ContextPool:       p.UUID(),
			volume.ContextAllocation: strconv.FormatInt(v.Allocation, 10),
		},
	}}, nil
}

// ensure finds a volume that satisfies the request, or creates it.
func ensure(ctx context.Context, p pool.Pool, name string, spec pool.Spec, r *csi.CapacityRange) (pool.Volume, error) {
	have, err := p.Lookup(ctx, name)
	switch {
	case errors.Is(err, pool.ErrNotFound):
		return p.Create(ctx, name, spec)
	case err != nil:
		return pool.Volume{}, err
	case have.FSType != spec.FSType || !within(have.Size, r):
		return pool.Volume{}, &pool.ExistsError{Have: have, Asked: spec}
	}
	return have, nil
}

// checkTopology refuses a volume that must be elsewhere. ResourceExhausted makes
// the provisioner ask the scheduler for another node.
func (d *Driver) checkTopology(ctx context.Context, r *csi.TopologyRequirement) error {
	here := d.segments()
	if allows(r, here) {
		return nil
	}
	all, err := d.allSegments(ctx)
	if err != nil {
		return err
	}
	if !allows(r, all) {
		return refuse(codes.ResourceExhausted, "accessibility_requirements: no term is satisfied by node %s (%s)", d.nodeID, volume.Topology(all))
	}
	return nil
}

// allSegments are the segments that the node reports of itself.
func (d *Driver) allSegments(ctx context.Context) (map[string]string, error) {
	more, err := d.topology(ctx)
	if err != nil {
		return nil, refuse(codes.Unavailable, "topology of node %s: %v", d.nodeID, err)
	}
	all := d.segments()
	for k, v := range more {
		if k != volume.TopologyNodeKey {
			all[k] = v
		}
	}
	return all, nil
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId()}); err != nil {
		return nil, err
	}
	id, err := volume.ParseID(req.GetVolumeId())
	if err != nil {
		return &csi.DeleteVolumeResponse{}, nil // no volume has such an id
	}
	unlock, err := d.locks.lock(ctx, id.String())
	if err != nil {
		return nil, statusOf(err)
	}
	defer unlock()
	p, name, err := d.find(req.GetVolumeId())
	if err != nil {
		// The pool is another node's, or on a disk that is missing. Success
		// would let the PersistentVolume go while the data is still there.
		return nil, refuse(codes.FailedPrecondition, "%v; the volume is deleted where its pool is", err)
	}
	for {
		err := p.Delete(ctx, name)
		if errors.Is(err, pool.ErrNotFound) {
			return &csi.DeleteVolumeResponse{}, nil
		}
		if err != nil {
			return nil, statusOf(fmt.Errorf("deleting volume %s: %w", req.GetVolumeId(), err))
		}
	}
}

// ControllerExpandVolume implements csi.ControllerServer: the volume and its
// device grow; a filesystem on it is the node's part.
func (d *Driver) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId()}); err != nil {
		return nil, err
	}
	size, err := grownSize(req.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	unlock, err := d.locks.lock(ctx, req.GetVolumeId())
	if err != nil {
		return nil, statusOf(err)
	}
	defer unlock()
	p, v, err := d.lookup(ctx, req.GetVolumeId())
	if err != nil {
		return nil, statusOf(err)
	}
	if limit := req.GetCapacityRange().GetLimitBytes(); limit > 0 && v.Size > limit {
		return nil, refuse(codes.OutOfRange, "capacity_range.limit_bytes: volume %s has %d bytes already, above %d; volumes never shrink",
			req.GetVolumeId(), v.Size, limit)
	}
	v, err = p.Grow(ctx, v.Name, size)
	if err != nil {
		return nil, statusOf(fmt.Errorf("growing volume %s: %w", req.GetVolumeId(), err))
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: v.FSType != ""}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId()}); err != nil {
		return nil, err
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, refuse(codes.InvalidArgument, "volume_capabilities: must be given")
	}
	_, v, err := d.lookup(ctx, req.GetVolumeId())
	if err != nil {
		return nil, statusOf(err)
	}
	u, err := useOfAll(req.GetVolumeCapabilities())
	if err == nil {
		err = suits(v, u)
	}
	if err == nil {
		_, err = poolParameter(req.GetParameters())
	}
	if err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      req.GetVolumeContext(),
		VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters:         req.GetParameters(),
	}}, nil
}

// GetCapacity implements csi.ControllerServer. What cannot be made here has no
// capacity here; only parameters that nobody knows are an error.
func (d *Driver) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	poolName, err := poolParameter(req.GetParameters())
	if err != nil {
		return nil, err
	}
	p, err := d.poolNamed(poolName)
	if err != nil {
		return &csi.GetCapacityResponse{}, nil //nolint:nilerr // a pool that is not here has no room here
	}
	var u use
	if caps := req.GetVolumeCapabilities(); len(caps) > 0 {
		if u, err = useOfAll(caps); err != nil {
			return &csi.GetCapacityResponse{}, nil //nolint:nilerr // for a use that is refused there is no room
		}
	}
	if t := req.GetAccessibleTopology(); t != nil {
		all, err := d.allSegments(ctx)
		if err != nil {
			return nil, err
		}
		if !volume.Topology(t.GetSegments()).MatchedBy(all) {
			return &csi.GetCapacityResponse{}, nil
		}
	}
	c, err := p.Capacity(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	largest := c.MaximumVolumeSize
	if largest == 0 {
		largest = c.Available
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: c.Available,
		MaximumVolumeSize: wrapperspb.Int64(largest),
		MinimumVolumeSize: wrapperspb.Int64(minimumSize(u)),
	}, nil
}
