// Package hosttest is the conformance suite of host.Host. The real host and the
// fake one pass it, so that a test on the fake means something.
package hosttest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

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
