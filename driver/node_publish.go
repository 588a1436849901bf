package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-storage/berth/driver/pool"
)

// NodePublishVolume implements csi.NodeServer: a staged volume is bound to a
// pod's path.
func (d *Driver) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId(), "target_path": req.GetTargetPath()}); err != nil {
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
	if err := d.publish(ctx, p, v, u, req); err != nil {
		return nil, statusOf(fmt.Errorf("publishing volume %s: %w", req.GetVolumeId(), err))
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *Driver) publish(ctx context.Context, p pool.Pool, v pool.Volume, u use, req *csi.NodePublishVolumeRequest) error {
	target := req.GetTargetPath()
	source, err := d.staged(ctx, p, v, req.GetStagingTargetPath())
	if err != nil {
		return err
	}
	have, err := d.at(ctx, p, v, target)
	if err != nil {
		return err
	}
	readOnly := req.GetReadonly() || u.readOnly
	if have != nil {
		// Also for a repeat: it finishes one that was cut short.
		return d.host.BindMount(ctx, source, target, readOnly)
	}
	if u.oneWriter {
		if err := d.refuseSecondTarget(source, req.GetStagingTargetPath(), target, v); err != nil {
			return err
		}
	}
	if err := makeTarget(target, u.block); err != nil {
		return err
	}
	if err := d.host.BindMount(ctx, source, target, readOnly); err != nil {
		return tookBack(err, d.unpublish(context.WithoutCancel(ctx), target))
	}
	return nil
}

// staged is what there is to bind: the device of a block volume, or the staging
// path, after proof that the volume is mounted there. Without the proof a pod
// could be given the empty folder below.
func (d *Driver) staged(ctx context.Context, p pool.Pool, v pool.Volume, path string) (string, error) {
	if v.FSType == "" {
		device, err := p.Attached(ctx, v.Name)
		if err == nil && device == "" {
			err = notStaged(v.Name, path)
		}
		return device, err
	}
	if path == "" {
		return "", notStaged(v.Name, path)
	}
	m, err := d.at(ctx, p, v, path)
	if err == nil && m == nil {
		err = notStaged(v.Name, path)
	}
	return path, err
}

// refuseSecondTarget keeps a SINGLE_NODE_SINGLE_WRITER volume at one target path
// (CSI specification, NodePublishVolume).
func (d *Driver) refuseSecondTarget(source, staging, target string, v pool.Volume) error {
	all, err := d.host.MountsUnder("/")
	if err != nil {
		return err
	}
	device := source
	if v.FSType != "" {
		m, _, err := d.host.MountAt(staging)
		if err != nil {
			return err
		}
		device, staging = m.Source, m.Target
	}
	for _, m := range all {
		if m.Target != staging && shows(m, device, v) {
			return refuse(codes.FailedPrecondition, "the volume has one writer only and is published at %s; it cannot be at %s too", m.Target, target)
		}
	}
	return nil
}

// makeTarget makes what a volume is bound to; the CO made the folder above.
func makeTarget(target string, file bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if file {
		f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	}
	err := os.Mkdir(target, 0o750)
	if errors.Is(err, os.ErrExist) {
		if info, statErr := os.Lstat(target); statErr == nil && info.IsDir() {
			return nil
		}
	}
	return err
}

// NodeUnpublishVolume implements csi.NodeServer. It needs no record of the
// volume.
func (d *Driver) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId(), "target_path": req.GetTargetPath()}); err != nil {
		return nil, err
	}
	unlock, err := d.locks.lock(ctx, req.GetVolumeId())
	if err != nil {
		return nil, statusOf(err)
	}
	defer unlock()
	if err := d.unpublish(ctx, req.GetTargetPath()); err != nil {
		return nil, statusOf(fmt.Errorf("unpublishing volume %s: %w", req.GetVolumeId(), err))
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// unpublish unmounts a target and removes what makeTarget made. What is not empty
// holds data that is not the volume's: it stays, and is an error.
func (d *Driver) unpublish(ctx context.Context, target string) error {
	if err := d.host.Unmount(ctx, target); err != nil {
		return err
	}
	info, err := os.Lstat(target)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() && (!info.Mode().IsRegular() || info.Size() > 0) {
		return fmt.Errorf("%s is not what was made there for the volume; remove it by hand", target)
	}
	// Remove, which cannot take a folder that has anything in it.
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
