package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit codes of blkid(8) and fsck(8).
const (
	blkidNothing   = 2
	blkidAmbiguous = 8
	fsckFixed      = 1
	fsckReboot     = 2
)

// ambiguous is what Probe calls a device with several contradicting signatures.
const ambiguous = "ambiguous"

// Probe implements Filesystems.
func (s *System) Probe(ctx context.Context, device string) (string, error) {
	// blkid answers "nothing found" for a device that it cannot read, too.
	if err := readable(device); err != nil {
		return "", fmt.Errorf("probing %s: %w", device, err)
	}
	out, err := s.tool(ctx, "blkid", "-p", "-o", "export", device)
	if err != nil {
		switch exitCode(err) {
		case blkidNothing:
			return "", nil
		case blkidAmbiguous:
			return ambiguous, nil
		}
		return "", fmt.Errorf("probing %s: %w", device, err)
	}
	found := parseExport(string(out))
	for _, key := range []string{"TYPE", "PTTYPE"} {
		if v := found[key]; v != "" {
			return v, nil
		}
	}
	return "", nil
}

// parseExport reads blkid's KEY=value lines.
func parseExport(out string) map[string]string {
	found := make(map[string]string)
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			found[k] = v
		}
	}
	return found
}

func readable(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.ReadAt(make([]byte, 4096), 0)
	return err
}

// Format implements Filesystems. It never forces: mkfs' own look at the device
// is a second guard.
func (s *System) Format(ctx context.Context, device, fstype string, options []string) error {
	found, err := s.Probe(ctx, device)
	if err != nil {
		return err
	}
	if found != "" {
		return fmt.Errorf("formatting %s as %s: it holds %s: %w", device, fstype, found, ErrNotEmpty)
	}
	var args []string
	switch fstype {
	case "ext4":
		args = []string{"-q"}
	case "xfs":
		args = []string{"-q"}
	default:
		return fmt.Errorf("formatting %s: filesystem %q is not known; want ext4 or xfs", device, fstype)
	}
	args = append(append(args, options...), device)
	if _, err := s.tool(ctx, "mkfs."+fstype, args...); err != nil {
		return fmt.Errorf("formatting %s: %w", device, err)
	}
	return nil
}

// Check implements Filesystems.
func (s *System) Check(ctx context.Context, device, fstype string) error {
	if fstype != "ext4" {
		return nil
	}
	return s.fsckExt4(ctx, "-p", device)
}

func (s *System) fsckExt4(ctx context.Context, args ...string) error {
	_, err := s.tool(ctx, "fsck.ext4", args...)
	switch exitCode(err) {
	case fsckFixed, fsckReboot, fsckFixed | fsckReboot:
		return nil
	}
	if err != nil {
		return fmt.Errorf("checking the filesystem: %w", err)
	}
	return nil
}

// GrowFilesystem implements Filesystems.
func (s *System) GrowFilesystem(ctx context.Context, device, mountPoint, fstype string) error {
	var err error
	switch {
	case fstype == "ext4" && mountPoint == "":
		err = s.growUnmountedExt4(ctx, device)
	case fstype == "ext4":
		_, err = s.tool(ctx, "resize2fs", device)
		if exitCode(err) > 0 && !hasCapability(unix.CAP_SYS_RESOURCE) {
			err = fmt.Errorf("a mounted ext4 grows only for CAP_SYS_RESOURCE, which this process lacks: %w (%w)", unix.EPERM, err)
		}
	case fstype == "xfs" && mountPoint == "":
		return nil
	case fstype == "xfs":
		// The mount point, since xfs grows through the mounted filesystem.
		_, err = s.tool(ctx, "xfs_growfs", "-d", mountPoint)
	default:
		err = fmt.Errorf("filesystem %q is not known; want ext4 or xfs", fstype)
	}
	if err != nil {
		return fmt.Errorf("growing the filesystem on %s: %w", device, err)
	}
	return nil
}

// growUnmountedExt4 runs the full check that resize2fs insists on only where
// there is something to grow, which resize2fs itself tells by failing.
func (s *System) growUnmountedExt4(ctx context.Context, device string) error {
	_, err := s.tool(ctx, "resize2fs", device)
	if exitCode(err) <= 0 {
		return err
	}
	if err := s.fsckExt4(ctx, "-f", "-p", device); err != nil {
		return err
	}
	_, err = s.tool(ctx, "resize2fs", device)
	return err
}

// hasCapability reads the effective capabilities of this process.
func hasCapability(capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

// Statfs implements Filesystems.
func (s *System) Statfs(path string) (Usage, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Usage{}, &os.PathError{Op: "statfs", Path: path, Err: err}
		}
		break
	}
	unit := st.Frsize
	return Usage{
		TotalBytes:      int64(st.Blocks) * unit,
		AvailableBytes:  int64(st.Bavail) * unit,
		UsedBytes:       int64(st.Blocks-st.Bfree) * unit,
		TotalInodes:     int64(st.Files),
		AvailableInodes: int64(st.Ffree),
		UsedInodes:      int64(st.Files - st.Ffree),
	}, nil
}
