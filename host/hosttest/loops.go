package hosttest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/host"
)

func loopLifecycle(t *testing.T, h host.Host) {
	file, device := Device(t, h, 8*mib)
	want := []host.Loop{{Device: device, File: file, Size: 8 * mib}}

	again, err := h.AttachLoop(t.Context(), file)
	must(t, err)
	if diff := cmp.Diff(want[0], again); diff != "" {
		t.Errorf("attaching again (-want +got):\n%s", diff)
	}
	for _, prefix := range []string{file, filepath.Dir(file), filepath.Dir(file) + "/"} {
		loops(t, h, prefix, want)
	}
	loops(t, h, file[:len(file)-1], nil)

	must(t, h.Allocate(t.Context(), file, 12*mib))
	loops(t, h, file, want)
	must(t, h.GrowLoop(t.Context(), device))
	want[0].Size = 12 * mib
	loops(t, h, file, want)
	must(t, h.GrowLoop(t.Context(), device))
	got, err := h.BlockSize(device)
	must(t, err)
	if got != 12*mib {
		t.Errorf("the device has %d bytes, want %d", got, 12*mib)
	}

	must(t, h.DetachLoop(t.Context(), file))
	loops(t, h, file, nil)
	must(t, h.DetachLoop(t.Context(), file))
	_, err = h.AttachLoop(t.Context(), filepath.Join(filepath.Dir(file), "none"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("attaching no file: %v", err)
	}
}

func loops(t *testing.T, h host.Host, prefix string, want []host.Loop) {
	t.Helper()
	got, err := h.LoopsUnder(prefix)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("loop devices under %s (-want +got):\n%s", prefix, diff)
	}
}

// loopOfDeletedFile: what a reboot or a crash in the middle of a deletion leaves.
func loopOfDeletedFile(t *testing.T, h host.Host) {
	file, device := Device(t, h, 4*mib)
	must(t, h.RemoveFile(file))
	gone := host.Loop{Device: device, File: file, FileGone: true, Size: 4 * mib}
	loops(t, h, filepath.Dir(file), []host.Loop{gone})

	must(t, h.Allocate(t.Context(), file, 8*mib))
	fresh, err := h.AttachLoop(t.Context(), file)
	must(t, err)
	if fresh.Device == device {
		t.Errorf("a new file got the device of the deleted one")
	}
	must(t, h.DetachLoop(t.Context(), file))
	loops(t, h, filepath.Dir(file), nil)
}

func loopInUse(t *testing.T, h host.Host) {
	file, device := Device(t, h, 16*mib)
	dir := Folder(t, h)
	must(t, h.Format(t.Context(), device, "ext4", nil))
	must(t, h.MountFilesystem(t.Context(), device, dir, "ext4", nil))
	if err := h.DetachLoop(t.Context(), file); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("detaching a mounted device: %v, want EBUSY", err)
	}
	loops(t, h, file, []host.Loop{{Device: device, File: file, Size: 16 * mib}})
	must(t, h.Unmount(t.Context(), dir))
	must(t, h.DetachLoop(t.Context(), file))
	loops(t, h, file, nil)
}
