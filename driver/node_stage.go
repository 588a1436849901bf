package driver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-storage/berth/driver/pool"
)

// NodeStageVolume implements csi.NodeServer: the volume becomes a device; on it
// a filesystem is made (once in its life) or checked, and mounted.
func (d *Driver) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId(), "staging_target_path": req.GetStagingTargetPath()}); err != nil {
		return nil, err
	}
	u, err := useOf(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	unlock, err := d.locks.lock(ctx, req.GetVolumeId())
	if err != nil {
		return nil, statusOf(err)
	}
	defer unlock()
	p, v, err := d.lookup(ctx, req.GetVolumeId())
	if err == nil {
		err = suits(v, u)
	}
	if err != nil {
		return nil, statusOf(err)
	}
	if u.block {
		// The device is all that there is to stage; the path stays empty.
		_, err = p.Attach(ctx, v.Name)
	} else {
		err = d.stage(ctx, p, v, u, req.GetStagingTargetPath())
	}
	if err != nil {
		return nil, statusOf(fmt.Errorf("staging volume %s: %w", req.GetVolumeId(), err))
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// stage mounts a volume's filesystem at path.
func (d *Driver) stage(ctx context.Context, p pool.Pool, v pool.Volume, u use, path string) error {
	have, err := d.at(ctx, p, v, path)
	if err != nil || have != nil {
		return err
	}
	err = d.stageNew(ctx, p, v, u, path)
	if err == nil {
		return nil
	}
	// The CO may take the answer as final and never call Unstage. A device that
	// is mounted elsewhere too (staged at another path) stays attached.
	err2 := d.unstage(context.WithoutCancel(ctx), p, v.Name, path)
	if errors.Is(err2, pool.ErrInUse) {
		err2 = nil
	}
	return tookBack(err, err2)
}

func (d *Driver) stageNew(ctx context.Context, p pool.Pool, v pool.Volume, u use, path string) error {
	device, err := p.Attach(ctx, v.Name)
	if err != nil {
		return err
	}
	if err := d.ensureFilesystem(ctx, p, v, device); err != nil {
		return err
	}
	// The CO makes the folder; one that was removed since is no reason to fail.
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	return d.host.MountFilesystem(ctx, device, path, v.FSType, u.mountFlags)
}

// ensureFilesystem makes the volume's filesystem if it never had one, and else
// checks it. A volume that once was formatted and now looks empty is broken: to
// format it would make that final.
func (d *Driver) ensureFilesystem(ctx context.Context, p pool.Pool, v pool.Volume, device string) error {
	found, err := d.host.Probe(ctx, device)
	if err != nil {
		return err
	}
	switch {
	case found == "" && v.Formatted:
		return refuse(codes.DataLoss, "the volume was formatted as %s and holds no filesystem now; it is not formatted again", v.FSType)
	case found == "":
		if err := d.host.Format(ctx, device, v.FSType, formatOptions(v.FSType)); err != nil {
			return err
		}
	case found != v.FSType:
		return refuse(codes.FailedPrecondition, "the volume holds %s, not %s; it is not formatted again", found, v.FSType)
	default:
		if err := d.prepare(ctx, v, device); err != nil {
			return err
		}
	}
	return p.MarkFormatted(ctx, v.Name)
}

// prepare checks a filesystem and makes it as long as its device, in case the
// volume grew while it was not in use. A device that is mounted already (the
// volume is staged at another path) is neither to be checked nor in need of it.
func (d *Driver) prepare(ctx context.Context, v pool.Volume, device string) error {
	all, err := d.host.MountsUnder("/")
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Source == device {
			return nil
		}
	}
	if err := d.host.Check(ctx, device, v.FSType); err != nil {
		return err
	}
	return d.host.GrowFilesystem(ctx, device, "", v.FSType)
}

// formatOptions are mkfs'. Discarding a new image would give the space back that
// Create took. Blocks reserved for root serve no pod.
func formatOptions(fstype string) []string {
	switch fstype {
	case "ext4":
		return []string{"-m", "0", "-E", "nodiscard"}
	case "xfs":
		return []string{"-K"}
	}
	return nil
}

// NodeUnstageVolume implements csi.NodeServer. It needs no record of the volume.
func (d *Driver) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId(), "staging_target_path": req.GetStagingTargetPath()}); err != nil {
		return nil, err
	}
	unlock, err := d.locks.lock(ctx, req.GetVolumeId())
	if err != nil {
		return nil, statusOf(err)
	}
	defer unlock()
	p, name, err := d.find(req.GetVolumeId())
	if err != nil {
		// The pool is gone; what is mounted still has to go.
		p = nil
	}
	if err := d.unstage(ctx, p, name, req.GetStagingTargetPath()); err != nil {
		return nil, statusOf(fmt.Errorf("unstaging volume %s: %w", req.GetVolumeId(), err))
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (d *Driver) unstage(ctx context.Context, p pool.Pool, name, path string) error {
	if err := d.host.Unmount(ctx, path); err != nil {
		return err
	}
	if p == nil {
		return nil
	}
	return p.Detach(ctx, name)
}
