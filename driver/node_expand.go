package driver

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-storage/berth/driver/pool"
)

// NodeExpandVolume implements csi.NodeServer: the filesystem of a mounted volume
// grows to the volume's size. A block volume has grown with its device.
func (d *Driver) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId(), "volume_path": req.GetVolumePath()}); err != nil {
		return nil, err
	}
	if err := checkRange(req.GetCapacityRange().GetRequiredBytes(), req.GetCapacityRange().GetLimitBytes()); err != nil {
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
	if asked := req.GetCapacityRange().GetRequiredBytes(); asked > v.Size {
		return nil, refuse(codes.FailedPrecondition, "volume %s has %d bytes, %d are asked; ControllerExpandVolume comes first",
			req.GetVolumeId(), v.Size, asked)
	}
	if err := d.expand(ctx, p, v, req); err != nil {
		return nil, statusOf(fmt.Errorf("growing volume %s: %w", req.GetVolumeId(), err))
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
}

func (d *Driver) expand(ctx context.Context, p pool.Pool, v pool.Volume, req *csi.NodeExpandVolumeRequest) error {
	m, err := d.mountedVolume(ctx, p, v, req.GetVolumePath())
	if err != nil {
		return err
	}
	// Attach again: a growth that was cut short between file and device is
	// finished by it.
	device, err := p.Attach(ctx, v.Name)
	if err != nil || v.FSType == "" {
		return err
	}
	at := m.point.Target
	// A pod's path may be read-only, through which no filesystem grows; the
	// staging path is not.
	if path := req.GetStagingTargetPath(); path != "" {
		staged, err := d.at(ctx, p, v, path)
		if err != nil {
			return err
		}
		if staged != nil {
			at = staged.point.Target
		}
	}
	err = d.host.GrowFilesystem(ctx, device, at, v.FSType)
	if errors.Is(err, syscall.EPERM) {
		return refuse(codes.FailedPrecondition, "%v; the filesystem grows when the volume is staged again", err)
	}
	return err
}
