package host_test

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
	"golang.org/x/sys/unix"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/host/hosttest"
)

const mib = 1 << 20

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mountedExt4 is a real ext4 filesystem of 16 MiB, mounted.
func mountedExt4(t *testing.T, h *host.System, options ...string) (device, dir string) {
	t.Helper()
	_, device = hosttest.Device(t, h, 16*mib)
	dir = hosttest.Folder(t, h)
	must(t, h.Format(t.Context(), device, "ext4", nil))
	must(t, h.MountFilesystem(t.Context(), device, dir, "ext4", options))
	return device, dir
}

func TestReadOnlyBindIsTheKernels(t *testing.T) {
	h := host.New(host.Options{})
	_, dir := mountedExt4(t, h, "nosuid", "nodev")
	target := hosttest.Folder(t, h)
	must(t, h.BindMount(t.Context(), dir, target, true))
	if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing to the read-only mount: %v, want EROFS", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	var st unix.Statfs_t
	must(t, unix.Statfs(target, &st))
	// A bind remount replaces all flags; those of the source must survive it.
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_RDONLY); st.Flags&want != want {
		t.Errorf("flags of the read-only mount: %#x, want %#x among them", st.Flags, want)
	}
}

func TestUnmountBusyByAnOpenFile(t *testing.T) {
	h := host.New(host.Options{})
	_, dir := mountedExt4(t, h)
	f, err := os.Create(filepath.Join(dir, "f"))
	must(t, err)
	if err := h.Unmount(t.Context(), dir); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("unmounting under an open file: %v, want EBUSY", err)
	}
	must(t, f.Close())
}

func TestUnmountTakesTheWholeStack(t *testing.T) {
	h := host.New(host.Options{})
	target := hosttest.Folder(t, h)
	for range 3 {
		must(t, unix.Mount("tmpfs", target, "tmpfs", 0, ""))
	}
	must(t, h.Unmount(t.Context(), target))
	got, err := h.MountsUnder(target)
	must(t, err)
	if len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// TestUnmountDoesNotFollow: a link at the target is no reason to unmount what it
// points to.
func TestUnmountDoesNotFollow(t *testing.T) {
	h := host.New(host.Options{})
	_, dir := mountedExt4(t, h)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	must(t, h.Unmount(t.Context(), link))
	if _, ok, err := h.MountAt(dir); err != nil || !ok {
		t.Errorf("the mount behind the link: %t, %v; want it there", ok, err)
	}
}

func TestMountsThroughALinkedFolder(t *testing.T) {
	h := host.New(host.Options{})
	device, dir := mountedExt4(t, h)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(filepath.Dir(dir), link))
	m, ok, err := h.MountAt(filepath.Join(link, filepath.Base(dir)))
	must(t, err)
	if !ok || m.Source != device {
		t.Errorf("mount %v, %t; want that of %s", m, ok, device)
	}
}

func TestDetachLoopThatIsOpen(t *testing.T) {
	h := host.New(host.Options{})
	file, device := hosttest.Device(t, h, 4*mib)
	f, err := os.Open(device)
	must(t, err)
	if err := h.DetachLoop(t.Context(), file); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("detaching an open device: %v, want EBUSY", err)
	}
	must(t, f.Close())
	// A refused detach must not happen later by itself.
	loops, err := h.LoopsUnder(file)
	must(t, err)
	if len(loops) != 1 || loops[0].Device != device {
		t.Errorf("devices %v, want %s still", loops, device)
	}
}

// TestAttachKeepsADeviceThatWasToGo: a device whose detach waits for its last user
// serves its next one for good.
func TestAttachKeepsADeviceThatWasToGo(t *testing.T) {
	h := host.New(host.Options{})
	file, device := hosttest.Device(t, h, 4*mib)
	user, err := os.Open(device)
	must(t, err)
	must(t, unix.IoctlSetInt(int(user.Fd()), unix.LOOP_CLR_FD, 0))
	l, err := h.AttachLoop(t.Context(), file)
	must(t, err)
	must(t, user.Close())
	loops, err := h.LoopsUnder(file)
	must(t, err)
	if diff := cmp.Diff([]host.Loop{l}, loops); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

// TestLoopOfAnotherNamespace: a container mounts a folder somewhere, makes a
// device of a file in it, and goes. The kernel then names the file without the
// folder.
func TestLoopOfAnotherNamespace(t *testing.T) {
	h := host.New(host.Options{})
	disk := hosttest.Folder(t, h)
	must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=32m"))
	file := filepath.Join(disk, "pool", "image")
	must(t, os.Mkdir(filepath.Dir(file), 0o700))
	must(t, h.Allocate(t.Context(), file, 4*mib))

	inside := hosttest.Folder(t, h)
	must(t, unix.Mount(disk, inside, "", unix.MS_BIND, ""))
	l, err := h.AttachLoop(t.Context(), filepath.Join(inside, "pool", "image"))
	must(t, err)
	t.Cleanup(func() { must(t, h.DetachLoop(context.Background(), file)) })
	must(t, unix.Unmount(inside, unix.MNT_DETACH))
	name, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(l.Device), "loop/backing_file"))
	must(t, err)
	if strings.HasPrefix(string(name), disk) {
		t.Fatalf("the kernel names the file %q; this test needs a name without %s", name, disk)
	}

	want := []host.Loop{{Device: l.Device, File: file, Size: 4 * mib}}
	for _, prefix := range []string{disk, filepath.Dir(file), file} {
		got, err := h.LoopsUnder(prefix)
		must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("devices under %s (-want +got):\n%s", prefix, diff)
		}
	}
	again, err := h.AttachLoop(t.Context(), file)
	must(t, err)
	if again.Device != l.Device {
		t.Errorf("the file got a second device, %s beside %s", again.Device, l.Device)
	}
	must(t, h.DetachLoop(t.Context(), file))
}

func TestAllocateTakesTheSpace(t *testing.T) {
	h := host.New(host.Options{})
	file := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, 4*mib)) // a hole
	must(t, h.Allocate(t.Context(), file, 8*mib))
	var st unix.Stat_t
	must(t, unix.Stat(file, &st))
	if got := st.Blocks * 512; got < 8*mib {
		t.Errorf("%d bytes are allocated of %d", got, 8*mib)
	}
}

// TestAllocateOnAFullDisk: the file that did not fit takes no space, although the
// disk had some.
func TestAllocateOnAFullDisk(t *testing.T) {
	h := host.New(host.Options{})
	_, dir := mountedExt4(t, h)
	before, err := h.Statfs(dir)
	must(t, err)
	old := filepath.Join(dir, "old")
	must(t, h.Allocate(t.Context(), old, mib))
	// Just above what there is, so that the kernel has to find out.
	var st unix.Statfs_t
	must(t, unix.Statfs(dir, &st))
	tooMuch := int64(st.Bfree) * st.Frsize
	for _, file := range []string{old, filepath.Join(dir, "new")} {
		if err := h.Allocate(t.Context(), file, mib+tooMuch); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("allocating %s: %v, want ENOSPC", file, err)
		}
	}
	info, err := os.Stat(old)
	must(t, err)
	if info.Size() != mib {
		t.Errorf("the old file has %d bytes, want %d", info.Size(), mib)
	}
	after, err := h.Statfs(dir)
	must(t, err)
	if lost := before.AvailableBytes - after.AvailableBytes; lost > 2*mib {
		t.Errorf("%d bytes are missing on the disk, want about %d", lost, mib)
	}
}

// TestAllocateGrowsWhereLittleIsFree: a file grows by less than is free, although
// it is itself larger than what is free.
func TestAllocateGrowsWhereLittleIsFree(t *testing.T) {
	h := host.New(host.Options{})
	_, device := hosttest.Device(t, h, 320*mib)
	dir := hosttest.Folder(t, h)
	must(t, h.Format(t.Context(), device, "xfs", nil))
	must(t, h.MountFilesystem(t.Context(), device, dir, "xfs", nil))
	u, err := h.Statfs(dir)
	must(t, err)
	file := filepath.Join(dir, "image")
	size := (u.AvailableBytes - 80*mib) / mib * mib
	must(t, h.Allocate(t.Context(), file, size))
	must(t, h.Allocate(t.Context(), file, size+64*mib))
	var st unix.Stat_t
	must(t, unix.Stat(file, &st))
	if got := st.Blocks * 512; got < size+64*mib || st.Size != size+64*mib {
		t.Errorf("%d bytes are allocated of %d, want %d", got, st.Size, size+64*mib)
	}
	// What has its space needs none.
	must(t, h.Allocate(t.Context(), file, size+64*mib))
}

func TestProbeSeesWhatIsNoFilesystem(t *testing.T) {
	h := host.New(host.Options{})
	file, device := hosttest.Device(t, h, 4*mib)
	table := make([]byte, 512)
	// One partition of type Linux, from sector 1.
	copy(table[446:], []byte{0, 0, 2, 0, 0x83, 0, 9, 0, 1, 0, 0, 0, 0xff, 0x0f, 0, 0})
	table[510], table[511] = 0x55, 0xaa
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.Write(table)
	must(t, err)
	must(t, f.Close())
	got, err := h.Probe(t.Context(), device)
	must(t, err)
	if got != "dos" {
		t.Errorf("found %q, want dos", got)
	}
	if err := h.Format(t.Context(), device, "ext4", nil); !errors.Is(err, host.ErrNotEmpty) {
		t.Errorf("formatting over a partition table: %v, want ErrNotEmpty", err)
	}
	content, err := os.ReadFile(file)
	must(t, err)
	if !bytes.Equal(content[:512], table) {
		t.Error("the partition table changed")
	}
}

func TestToolMissing(t *testing.T) {
	_, device := hosttest.Device(t, host.New(host.Options{}), 4*mib)
	root := t.TempDir()
	_, err := host.New(host.Options{Root: root}).Probe(t.Context(), device)
	if err == nil || !strings.Contains(err.Error(), "blkid is not installed under "+root+"; install package util-linux") {
		t.Errorf("error %v, want one that names the tool, the root and the package", err)
	}
}

// TestToolIsStopped: a tool that hangs ends with the context.
func TestToolIsStopped(t *testing.T) {
	_, device := hosttest.Device(t, host.New(host.Options{}), 4*mib)
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "usr/sbin"), 0o755))
	must(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	must(t, os.WriteFile(filepath.Join(root, "usr/sbin/blkid"), []byte("#!/bin/sh\nread x < /fifo\n"), 0o755))
	for _, dir := range []string{"bin", "lib", "lib64", "usr/lib", "usr/lib64"} {
		bindReadOnly(t, "/"+dir, filepath.Join(root, dir))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := host.New(host.Options{Root: root}).Probe(ctx, device)
		done <- err
	}()
	// The writer's open succeeds once the tool has opened the other end.
	w, err := os.OpenFile(filepath.Join(root, "fifo"), os.O_WRONLY, 0)
	must(t, err)
	defer w.Close()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the tool ended with %v, want context.Canceled", err)
	}
}

func bindReadOnly(t *testing.T, source, target string) {
	t.Helper()
	if _, err := os.Stat(source); err != nil {
		return
	}
	h := host.New(host.Options{})
	must(t, os.MkdirAll(target, 0o755))
	t.Cleanup(func() { must(t, h.Unmount(context.Background(), target)) })
	must(t, h.BindMount(t.Context(), source, target, true))
}

// TestNoLoopIsLost: many files at once, each gets a device of its own.
func TestNoLoopIsLost(t *testing.T) {
	h := host.New(host.Options{})
	dir := t.TempDir()
	const files = 12
	type result struct {
		device string
		err    error
	}
	results := make(chan result, files)
	for i := range files {
		file := filepath.Join(dir, strconv.Itoa(i))
		must(t, h.Allocate(t.Context(), file, mib))
		t.Cleanup(func() { must(t, h.DetachLoop(context.Background(), file)) })
		// A host of its own each, as processes are: no lock is shared.
		go func() {
			l, err := host.New(host.Options{}).AttachLoop(t.Context(), file)
			results <- result{l.Device, err}
		}()
	}
	seen := make(map[string]bool)
	for range files {
		r := <-results
		must(t, r.err)
		seen[r.device] = true
	}
	if len(seen) != files {
		t.Errorf("%d files got %d devices", files, len(seen))
	}
}
