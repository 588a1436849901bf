package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// MountFilesystem implements Mounts.
func (s *System) MountFilesystem(ctx context.Context, device, target, fstype string, options []string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	flags, data, err := parseMountOptions(options)
	if err != nil {
		return err
	}
	top, err := topMount(target)
	if err != nil {
		return err
	}
	if top != nil {
		same, err := showsDevice(top, device)
		if err != nil || same {
			return err
		}
		return fmt.Errorf("mounting %s at %s: %s is already mounted there", device, target, top.Source)
	}
	if err := unix.Mount(device, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mounting %s (%s, options %q) at %s: %w", device, fstype, options, target, err)
	}
	return nil
}

// BindMount implements Mounts.
func (s *System) BindMount(ctx context.Context, source, target string, readOnly bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	top, err := topMount(target)
	if err != nil {
		return err
	}
	if top != nil {
		return s.rebind(source, target, readOnly, top)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding %s to %s: %w", source, target, err)
	}
	if !readOnly {
		return nil
	}
	if err := makeReadOnly(target); err != nil {
		// A writable mount must not stay where a read-only one was asked for.
		return errors.Join(err, s.Unmount(context.WithoutCancel(ctx), target))
	}
	return nil
}

// rebind is BindMount where something is mounted already.
func (s *System) rebind(source, target string, readOnly bool, top *mountinfo.Info) error {
	same, err := sameFile(source, target)
	if err != nil {
		return err
	}
	if !same {
		return fmt.Errorf("binding %s to %s: %s is already mounted there", source, target, top.Source)
	}
	switch isReadOnly := hasOption(top.Options, "ro"); {
	case isReadOnly == readOnly:
		return nil
	case readOnly:
		return makeReadOnly(target)
	}
	over, err := mountOf(source)
	if err != nil {
		return err
	}
	if over != nil && hasOption(over.Options, "ro") {
		return nil // it is read-only because its source is
	}
	return fmt.Errorf("binding %s to %s: it is already mounted there, read-only", source, target)
}

func makeReadOnly(target string) error {
	top, err := topMount(target)
	if err != nil {
		return err
	}
	if top == nil {
		return fmt.Errorf("making %s read-only: nothing is mounted there", target)
	}
	flags := uintptr(unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY) | keptByRemount(top.Options)
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", target, err)
	}
	return nil
}

// Unmount implements Mounts.
func (s *System) Unmount(ctx context.Context, target string) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
			continue // another may lie below it
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
			// EINVAL is the kernel's word for "not a mount point".
			return nil
		default:
			return fmt.Errorf("unmounting %s: %w", target, err)
		}
	}
}

// MountsUnder implements Mounts.
func (s *System) MountsUnder(prefix string) ([]MountPoint, error) {
	infos, err := mountinfo.GetMounts(under(resolve(prefix)))
	if err != nil {
		return nil, fmt.Errorf("reading the mount table: %w", err)
	}
	points := make([]MountPoint, 0, len(infos))
	for _, i := range infos {
		points = append(points, pointOf(i))
	}
	return points, nil
}

// MountAt implements Mounts.
func (s *System) MountAt(target string) (MountPoint, bool, error) {
	top, err := topMount(target)
	if err != nil || top == nil {
		return MountPoint{}, false, err
	}
	return pointOf(top), true, nil
}

func pointOf(i *mountinfo.Info) MountPoint {
	return MountPoint{
		Target:   i.Mountpoint,
		Source:   i.Source,
		Root:     i.Root,
		Device:   strconv.Itoa(i.Major) + ":" + strconv.Itoa(i.Minor),
		FSType:   i.FSType,
		ReadOnly: hasOption(i.Options, "ro"),
	}
}

// under keeps the mounts at prefix and below it.
func under(prefix string) mountinfo.FilterFunc {
	return func(i *mountinfo.Info) (skip, stop bool) {
		return !isUnder(i.Mountpoint, prefix), false
	}
}

// isUnder reports whether a clean path is prefix or lies below it.
func isUnder(path, prefix string) bool {
	return path == prefix || prefix == "/" || strings.HasPrefix(path, prefix+"/")
}

// resolve gives the path as the mount table writes it. Only the folder above is
// resolved: the last element may be a mount that does not answer.
func resolve(path string) string {
	path = filepath.Clean(path)
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return path
}

// topMount is the uppermost mount at target, nil for none.
func topMount(target string) (*mountinfo.Info, error) {
	best, err := mountOf(target)
	if err != nil || best == nil || best.Mountpoint != resolve(target) {
		return nil, err
	}
	return best, nil
}

// mountOf is the mount that path lies in, nil for none.
func mountOf(path string) (*mountinfo.Info, error) {
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(resolve(path)))
	if err != nil {
		return nil, fmt.Errorf("reading the mount table: %w", err)
	}
	var best *mountinfo.Info
	for _, i := range infos {
		// Of several mounts at one point, the later hides the earlier.
		if best == nil || len(i.Mountpoint) >= len(best.Mountpoint) {
			best = i
		}
	}
	return best, nil
}

// showsDevice reports whether a mount is one of a device's filesystem. The
// source is compared too, since btrfs mounts carry a number of their own.
func showsDevice(m *mountinfo.Info, device string) (bool, error) {
	if m.Source == device {
		return true, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return false, fmt.Errorf("reading device %s: %w", device, err)
	}
	return st.Mode&unix.S_IFMT == unix.S_IFBLK &&
		int(unix.Major(st.Rdev)) == m.Major && int(unix.Minor(st.Rdev)) == m.Minor, nil
}

func sameFile(a, b string) (bool, error) {
	ia, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(ia, ib), nil
}

// hasOption reports whether a comma-separated list holds an option.
func hasOption(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}
