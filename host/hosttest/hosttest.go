// Package hosttest is the conformance suite of host.Host. The real host and the
// fake one pass it, so that a test on the fake means something.
package hosttest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/host"
)

const mib = 1 << 20

// Run checks that a host keeps its contract. It needs root where the host is real.
func Run(t *testing.T, newHost func(t *testing.T) host.Host) {
	for name, test := range map[string]func(t *testing.T, h host.Host){
		"Allocate":           allocate,
		"AllocateNoSpace":    allocateNoSpace,
		"ReplaceFile":        replaceFile,
		"RemoveFile":         removeFile,
		"LockFile":           lockFile,
		"SyncDir":            syncDir,
		"LoopLifecycle":      loopLifecycle,
		"LoopOfDeletedFile":  loopOfDeletedFile,
		"LoopInUse":          loopInUse,
		"FormatOnce":         formatOnce,
		"FormatUnknown":      formatUnknown,
		"MountFilesystem":    mountFilesystem,
		"MountReadOnly":      mountReadOnly,
		"MountRefusals":      mountRefusals,
		"GrowExt4":           func(t *testing.T, h host.Host) { grow(t, h, "ext4", 16*mib) },
		"GrowUnmounted":      growUnmounted,
		"GrowXFS":            func(t *testing.T, h host.Host) { grow(t, h, "xfs", 320*mib) },
		"BindFolder":         bindFolder,
		"BindFile":           bindFile,
		"BindDevice":         bindDevice,
		"BindFinishesAStart": bindFinishesAStart,
		"UnmountNothing":     unmountNothing,
		"UnmountBusy":        unmountBusy,
		"EndedContext":       endedContext,
	} {
		t.Run(name, func(t *testing.T) { test(t, newHost(t)) })
	}
}

// Device makes an image file of a size in a new folder and attaches it; both go
// with the test, as do the mounts that the test names to Unmounted.
func Device(t *testing.T, h host.Host, size int64) (file, device string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "image")
	must(t, h.Allocate(t.Context(), file, size))
	l, err := h.AttachLoop(t.Context(), file)
	must(t, err)
	t.Cleanup(func() { must(t, h.DetachLoop(context.Background(), file)) })
	return file, l.Device
}

// Folder makes an empty folder from which everything is unmounted at the end.
func Folder(t *testing.T, h host.Host) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "target")
	must(t, os.Mkdir(dir, 0o750))
	unmounted(t, h, dir)
	return dir
}

func unmounted(t *testing.T, h host.Host, target string) {
	t.Cleanup(func() { must(t, h.Unmount(context.Background(), target)) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, what string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s succeeded, want an error", what)
	}
}

func size(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	must(t, err)
	return info.Size()
}

func allocate(t *testing.T, h host.Host) {
	file := filepath.Join(t.TempDir(), "image")
	for _, step := range []struct {
		reason    string
		ask, want int64
	}{
		{"a new file", 4 * mib, 4 * mib},
		{"repeated", 4 * mib, 4 * mib},
		{"never shrinks", mib, 4 * mib},
		{"grows", 6 * mib, 6 * mib},
	} {
		must(t, h.Allocate(t.Context(), file, step.ask))
		if got := size(t, file); got != step.want {
			t.Errorf("%s: size %d, want %d", step.reason, got, step.want)
		}
	}
	info, err := os.Stat(file)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	refused(t, h.Allocate(t.Context(), t.TempDir(), mib), "allocating a folder")
}

func allocateNoSpace(t *testing.T, h host.Host) {
	const tooMuch = 12 << 40
	dir := t.TempDir()
	created, old := filepath.Join(dir, "new"), filepath.Join(dir, "old")
	must(t, h.Allocate(t.Context(), old, mib))
	for _, file := range []string{created, old} {
		if err := h.Allocate(t.Context(), file, tooMuch); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("allocating too much for %s: %v, want ENOSPC", file, err)
		}
	}
	if _, err := os.Stat(created); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that did not fit exists: %v", err)
	}
	if got := size(t, old); got != mib {
		t.Errorf("a file that could not grow has size %d, want %d", got, mib)
	}
}

func replaceFile(t *testing.T, h host.Host) {
	dir := t.TempDir()
	file := filepath.Join(dir, "record")
	for _, content := range []string{"one", "and two"} {
		must(t, h.ReplaceFile(file, []byte(content)))
		got, err := os.ReadFile(file)
		must(t, err)
		if !bytes.Equal(got, []byte(content)) {
			t.Errorf("content %q, want %q", got, content)
		}
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("%d files in the folder, want only the one replaced", len(entries))
	}
	refused(t, h.ReplaceFile(filepath.Join(dir, "none", "x"), nil), "replacing a file in no folder")
}

func removeFile(t *testing.T, h host.Host) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, h.RemoveFile(file))
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	must(t, h.RemoveFile(file))
	must(t, h.RemoveFile(filepath.Join(dir, "none", "f")))
	refused(t, h.RemoveFile(dir), "removing a folder")
}

func lockFile(t *testing.T, h host.Host) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := h.LockFile(file)
	must(t, err)
	if _, err := h.LockFile(file); !errors.Is(err, host.ErrLocked) {
		t.Errorf("a second lock: %v, want ErrLocked", err)
	}
	must(t, unlock())
	unlock, err = h.LockFile(file)
	must(t, err)
	must(t, unlock())
}

func syncDir(t *testing.T, h host.Host) {
	dir := t.TempDir()
	must(t, h.SyncDir(dir))
	if err := h.SyncDir(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("syncing no folder: %v", err)
	}
}

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

func mountFilesystem(t *testing.T, h host.Host) {
	_, device := Device(t, h, 16*mib)
	dir := Folder(t, h)
	must(t, h.Format(t.Context(), device, "ext4", nil))
	for range 2 {
		must(t, h.MountFilesystem(t.Context(), device, dir, "ext4", []string{"noatime"}))
		got := mounts(t, h, dir)
		if len(got) != 1 {
			t.Fatalf("%d mounts at the target, want 1", len(got))
		}
		want := host.MountPoint{Target: dir, Source: device, Root: "/", Device: got[0].Device, FSType: "ext4"}
		if diff := cmp.Diff(want, got[0]); diff != "" {
			t.Errorf("the mount (-want +got):\n%s", diff)
		}
	}
	for range 2 {
		must(t, h.Unmount(t.Context(), dir))
		if got := mounts(t, h, dir); len(got) != 0 {
			t.Errorf("after Unmount: %v", got)
		}
	}
}

func mounts(t *testing.T, h host.Host, prefix string) []host.MountPoint {
	t.Helper()
	got, err := h.MountsUnder(prefix)
	must(t, err)
	return got
}

func mountReadOnly(t *testing.T, h host.Host) {
	_, device := Device(t, h, 16*mib)
	dir, target := Folder(t, h), Folder(t, h)
	must(t, h.Format(t.Context(), device, "ext4", nil))
	must(t, h.MountFilesystem(t.Context(), device, dir, "ext4", []string{"ro"}))
	for range 2 {
		must(t, h.BindMount(t.Context(), dir, target, false))
	}
	for _, at := range []string{dir, target} {
		if got := mounts(t, h, at); len(got) != 1 || !got[0].ReadOnly {
			t.Errorf("mounts at %s: %v, want one that is read-only", at, got)
		}
	}
}

func mountRefusals(t *testing.T, h host.Host) {
	_, device := Device(t, h, 16*mib)
	_, other := Device(t, h, 16*mib)
	dir := Folder(t, h)
	refused(t, h.MountFilesystem(t.Context(), device, dir, "ext4", nil), "mounting an empty device")
	must(t, h.Format(t.Context(), device, "ext4", nil))
	must(t, h.Format(t.Context(), other, "ext4", nil))
	refused(t, h.MountFilesystem(t.Context(), device, dir+"/none", "ext4", nil), "mounting at no folder")
	refused(t, h.MountFilesystem(t.Context(), device, dir, "ext4", []string{"remount"}), "a mount that is a remount")
	must(t, h.MountFilesystem(t.Context(), device, dir, "ext4", nil))
	refused(t, h.MountFilesystem(t.Context(), other, dir, "ext4", nil), "mounting over another device")
	if got := mounts(t, h, dir); len(got) != 1 || got[0].Source != device {
		t.Errorf("mounts: %v, want only that of %s", got, device)
	}
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

func bindFolder(t *testing.T, h host.Host) {
	source, rw, ro := t.TempDir(), Folder(t, h), Folder(t, h)
	for range 2 {
		must(t, h.BindMount(t.Context(), source, rw, false))
		must(t, h.BindMount(t.Context(), source, ro, true))
	}
	for target, readOnly := range map[string]bool{rw: false, ro: true} {
		if got := mounts(t, h, target); len(got) != 1 || got[0].ReadOnly != readOnly {
			t.Errorf("mounts at %s: %v, want one, read-only %t", target, got, readOnly)
		}
	}
	refused(t, h.BindMount(t.Context(), source, ro, false), "making a read-only mount writable")
	refused(t, h.BindMount(t.Context(), t.TempDir(), rw, false), "binding over another source")
	refused(t, h.BindMount(t.Context(), source+"/none", Folder(t, h), false), "binding no folder")
	refused(t, h.BindMount(t.Context(), source, rw+"/none", false), "binding at no folder")
}

func bindFile(t *testing.T, h host.Host) {
	dir := t.TempDir()
	source, target := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, f := range []string{source, target} {
		must(t, os.WriteFile(f, nil, 0o600))
	}
	unmounted(t, h, target)
	refused(t, h.BindMount(t.Context(), dir, target, false), "binding a folder to a file")
	for range 2 {
		must(t, h.BindMount(t.Context(), source, target, false))
	}
	if got := mounts(t, h, dir); len(got) != 1 || got[0].Target != target {
		t.Errorf("mounts: %v, want one at %s", got, target)
	}
}

func bindDevice(t *testing.T, h host.Host) {
	_, device := Device(t, h, 4*mib)
	_, other := Device(t, h, 4*mib)
	target := filepath.Join(t.TempDir(), "device")
	must(t, os.WriteFile(target, nil, 0o600))
	unmounted(t, h, target)
	for range 2 {
		must(t, h.BindMount(t.Context(), device, target, false))
	}
	got := mounts(t, h, target)
	if want := "/" + filepath.Base(device); len(got) != 1 || got[0].Root != want {
		t.Errorf("mounts: %v, want one of %s", got, want)
	}
	refused(t, h.BindMount(t.Context(), other, target, false), "binding another device")
}

func bindFinishesAStart(t *testing.T, h host.Host) {
	source, target := t.TempDir(), Folder(t, h)
	must(t, h.BindMount(t.Context(), source, target, false))
	must(t, h.BindMount(t.Context(), source, target, true))
	if got := mounts(t, h, target); len(got) != 1 || !got[0].ReadOnly {
		t.Errorf("mounts: %v, want one that is read-only", got)
	}
}

func unmountNothing(t *testing.T, h host.Host) {
	dir := t.TempDir()
	must(t, h.Unmount(t.Context(), dir))
	must(t, h.Unmount(t.Context(), filepath.Join(dir, "none")))
	if got := mounts(t, h, dir); len(got) != 0 {
		t.Errorf("mounts: %v", got)
	}
}

func unmountBusy(t *testing.T, h host.Host) {
	source, target := t.TempDir(), Folder(t, h)
	must(t, os.Mkdir(filepath.Join(source, "sub"), 0o750))
	must(t, os.Mkdir(filepath.Join(target, "sub"), 0o750))
	must(t, h.BindMount(t.Context(), source, target, false))
	inner := filepath.Join(target, "sub")
	must(t, h.BindMount(t.Context(), t.TempDir(), inner, false))
	if err := h.Unmount(t.Context(), target); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("unmounting under another mount: %v, want EBUSY", err)
	}
	if got := mounts(t, h, target); len(got) != 2 {
		t.Errorf("mounts: %v, want both", got)
	}
	for at, want := range map[string]bool{target: true, inner: true, inner + "/none": false, filepath.Dir(target): false} {
		got, ok, err := h.MountAt(at)
		must(t, err)
		if ok != want || ok && got.Target != at {
			t.Errorf("mount at %s: %v, %t; want %t", at, got, ok, want)
		}
	}
	must(t, h.Unmount(t.Context(), inner))
}

func endedContext(t *testing.T, h host.Host) {
	file, device := Device(t, h, 16*mib)
	dir := Folder(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range map[string]error{
		"Allocate":        h.Allocate(ctx, file+"2", mib),
		"Format":          h.Format(ctx, device, "ext4", nil),
		"MountFilesystem": h.MountFilesystem(ctx, device, dir, "ext4", nil),
		"BindMount":       h.BindMount(ctx, t.TempDir(), dir, false),
		"Unmount":         h.Unmount(ctx, dir),
		"GrowLoop":        h.GrowLoop(ctx, device),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", what, err)
		}
	}
	probe(t, h, device, "")
}
