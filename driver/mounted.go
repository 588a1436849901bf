package driver

import (
	"context"
	"path/filepath"

	"google.golang.org/grpc/codes"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/host"
)

// mounted is a volume at a path.
type mounted struct {
	device string
	point  host.MountPoint
}

// at reads what of a volume is mounted at a path, from the mount table and the
// pool; nil for nothing. Something else at that path is FailedPrecondition.
func (d *Driver) at(ctx context.Context, p pool.Pool, v pool.Volume, path string) (*mounted, error) {
	m, ok, err := d.host.MountAt(path)
	if err != nil || !ok {
		return nil, err
	}
	device, err := p.Attached(ctx, v.Name)
	if err != nil {
		return nil, err
	}
	if device != "" && shows(m, device, v) {
		return &mounted{device: device, point: m}, nil
	}
	return nil, refuse(codes.FailedPrecondition, "%s shows %s, not volume %s; unmount it first", path, m.Source, v.Name)
}

// shows reports whether a mount is of a volume's filesystem or of its device node.
func shows(m host.MountPoint, device string, v pool.Volume) bool {
	if v.FSType != "" {
		return m.Source == device
	}
	// Root is the node's path in the filesystem that /dev is.
	return filepath.Base(m.Root) == filepath.Base(device)
}

// mountedVolume is at for a volume that must be there: NotFound for nothing.
func (d *Driver) mountedVolume(ctx context.Context, p pool.Pool, v pool.Volume, path string) (*mounted, error) {
	m, err := d.at(ctx, p, v, path)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, refuse(codes.NotFound, "volume %s is not mounted at %s", v.Name, path)
	}
	return m, nil
}
