package hosttest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berth-storage/berth/host"
)

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
