package hosttest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/host"
)

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
