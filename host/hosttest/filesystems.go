package hosttest

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-storage/berth/host"
)

func formatOnce(t *testing.T, h host.Host) {
	_, device := Device(t, h, 16*mib)
	probe(t, h, device, "")
	must(t, h.Format(t.Context(), device, "ext4", []string{"-m", "0", "-E", "nodiscard"}))
	probe(t, h, device, "ext4")
	must(t, h.Check(t.Context(), device, "ext4"))
	for _, fstype := range []string{"ext4", "xfs"} {
		if err := h.Format(t.Context(), device, fstype, nil); !errors.Is(err, host.ErrNotEmpty) {
			t.Errorf("formatting again as %s: %v, want ErrNotEmpty", fstype, err)
		}
	}
	probe(t, h, device, "ext4")
}

func probe(t *testing.T, h host.Host, device, want string) {
	t.Helper()
	got, err := h.Probe(t.Context(), device)
	must(t, err)
	if got != want {
		t.Errorf("%s holds %q, want %q", device, got, want)
	}
}

func formatUnknown(t *testing.T, h host.Host) {
	file, device := Device(t, h, 16*mib)
	refused(t, h.Format(t.Context(), device, "minix", nil), "formatting as minix")
	refused(t, h.Check(t.Context(), device, "ext4"), "checking an empty device")
	must(t, h.DetachLoop(t.Context(), file))
	_, err := h.Probe(t.Context(), device)
	refused(t, err, "probing a device without a file")
}

func grow(t *testing.T, h host.Host, fstype string, from int64) {
	file, device := Device(t, h, from)
	dir := Folder(t, h)
	must(t, h.Format(t.Context(), device, fstype, nil))
	must(t, h.MountFilesystem(t.Context(), device, dir, fstype, nil))
	must(t, h.GrowFilesystem(t.Context(), device, dir, fstype)) // nothing to grow
	before, err := h.Statfs(dir)
	must(t, err)

	must(t, h.Allocate(t.Context(), file, 2*from))
	must(t, h.GrowLoop(t.Context(), device))
	err = h.GrowFilesystem(t.Context(), device, dir, fstype)
	if fstype == "ext4" && errors.Is(err, syscall.EPERM) && !GrowsMountedExt4(t) {
		gained(t, h, dir, before, 0)
		must(t, h.Unmount(t.Context(), dir))
		must(t, h.GrowFilesystem(t.Context(), device, "", fstype))
		must(t, h.MountFilesystem(t.Context(), device, dir, fstype, nil))
		err = nil
	}
	must(t, err)
	gained(t, h, dir, before, from)
	must(t, h.GrowFilesystem(t.Context(), device, dir, fstype))
	refused(t, h.GrowFilesystem(t.Context(), device, dir, "minix"), "growing minix")
}

// gained checks that the filesystem at dir is larger than before by about want.
func gained(t *testing.T, h host.Host, dir string, before host.Usage, want int64) {
	t.Helper()
	after, err := h.Statfs(dir)
	must(t, err)
	if got := after.TotalBytes - before.TotalBytes; got < want*9/10 || got > want*11/10 {
		t.Errorf("the filesystem gained %d bytes, want about %d", got, want)
	}
}

// GrowsMountedExt4 reports whether Linux lets this process grow a mounted ext4,
// which takes CAP_SYS_RESOURCE. It reads /proc, so that a test does not ask the
// code under test.
func GrowsMountedExt4(t *testing.T) bool {
	t.Helper()
	const capSysResource = 24
	content, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, rest, _ := strings.Cut(string(content), "CapEff:")
	field, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	bits, err := strconv.ParseUint(field, 16, 64)
	must(t, err)
	return bits&(1<<capSysResource) != 0
}

// growUnmounted: what a volume does that grew while no pod used it.
func growUnmounted(t *testing.T, h host.Host) {
	file, device := Device(t, h, 16*mib)
	dir := Folder(t, h)
	must(t, h.Format(t.Context(), device, "ext4", nil))
	must(t, h.MountFilesystem(t.Context(), device, dir, "ext4", nil))
	before, err := h.Statfs(dir)
	must(t, err)
	must(t, h.Unmount(t.Context(), dir))
	must(t, h.Allocate(t.Context(), file, 32*mib))
	must(t, h.GrowLoop(t.Context(), device))
	for range 2 {
		must(t, h.GrowFilesystem(t.Context(), device, "", "ext4"))
	}
	must(t, h.MountFilesystem(t.Context(), device, dir, "ext4", nil))
	gained(t, h, dir, before, 16*mib)
}
