package host

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParseMountOptions(t *testing.T) {
	for reason, c := range map[string]struct {
		options   []string
		wantFlags uintptr
		wantData  string
		wantErr   bool
	}{
		"none":                        {},
		"flags":                       {options: []string{"ro", "noatime"}, wantFlags: unix.MS_RDONLY | unix.MS_NOATIME},
		"the filesystem's own":        {options: []string{"ro", "discard", "commit=5"}, wantFlags: unix.MS_RDONLY, wantData: "discard,commit=5"},
		"the later wins":              {options: []string{"ro", "noexec", "rw"}, wantFlags: unix.MS_NOEXEC},
		"for fstab's readers":         {options: []string{"defaults", "_netdev", "x-systemd.automount", ""}},
		"a value is kept as it is":    {options: []string{`context="system_u:object_r:x:s0:c1,c2"`}, wantData: `context="system_u:object_r:x:s0:c1,c2"`},
		"another kind of mount":       {options: []string{"bind"}, wantErr: true},
		"a remount":                   {options: []string{"noatime", "remount"}, wantErr: true},
		"a change of the propagation": {options: []string{"rshared"}, wantErr: true},
	} {
		t.Run(reason, func(t *testing.T) {
			flags, data, err := parseMountOptions(c.options)
			if flags != c.wantFlags || data != c.wantData || (err != nil) != c.wantErr {
				t.Errorf("got %#x, %q, %v; want %#x, %q, error: %t", flags, data, err, c.wantFlags, c.wantData, c.wantErr)
			}
		})
	}
}

func TestIsUnder(t *testing.T) {
	for _, c := range []struct {
		path, prefix string
		want         bool
	}{
		{"/a", "/a", true}, {"/a/b", "/a", true}, {"/ab", "/a", false}, {"/", "/a", false}, {"/a", "/", true},
	} {
		if got := isUnder(c.path, c.prefix); got != c.want {
			t.Errorf("%s under %s: got %t, want %t", c.path, c.prefix, got, c.want)
		}
	}
}

func TestTail(t *testing.T) {
	for reason, c := range map[string]struct{ in, want string }{
		"short":                       {"a b", "a b"},
		"in one line":                 {"a\n\n  b\n", "a b"},
		"its end":                     {"0123456789abc", "…3456789abc"},
		"never half of one character": {"xxxxé345678901", "…345678901"},
	} {
		if got := tail(c.in, 10); got != c.want {
			t.Errorf("%s: got %q, want %q", reason, got, c.want)
		}
	}
}

// TestOldKernelsLoop: the way of kernels before 5.8 gives a device of the same file.
func TestOldKernelsLoop(t *testing.T) {
	s := New(Options{})
	s.configure = configureOldLoop
	file := filepath.Join(t.TempDir(), "image")
	if err := s.Allocate(t.Context(), file, 1<<20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.DetachLoop(context.Background(), file); err != nil {
			t.Error(err)
		}
	})
	l, err := s.AttachLoop(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.LoopsUnder(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Loop{{Device: l.Device, File: file, Size: 1 << 20}}, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

// TestDetachWaitsForALeavingNamespace: a mount namespace copied while a
// filesystem was mounted (as every container's start does) keeps that filesystem
// until it goes, although it is unmounted here.
func TestDetachWaitsForALeavingNamespace(t *testing.T) {
	s := New(Options{})
	s.patience = time.Minute
	file, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Allocate(t.Context(), file, 4<<20))
	l, err := s.AttachLoop(t.Context(), file)
	must(err)
	must(s.Format(t.Context(), l.Device, "ext4", nil))
	must(s.MountFilesystem(t.Context(), l.Device, dir, "ext4", nil))

	other := exec.Command("cat")
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	stdin, err := other.StdinPipe()
	must(err)
	must(other.Start())
	must(s.Unmount(t.Context(), dir))
	if _, err := os.OpenFile(l.Device, os.O_RDWR|os.O_EXCL, 0); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("opening the device: %v; this test needs it busy", err)
	}
	done := make(chan error)
	go func() { done <- s.DetachLoop(t.Context(), file) }()
	select {
	case err := <-done:
		t.Fatalf("detached beside another namespace: %v", err)
	case <-time.After(5 * detachTick):
	}
	must(stdin.Close())
	must(other.Wait())
	must(<-done)
	if left, err := loopsOf(file); err != nil || len(left) > 0 {
		t.Errorf("devices %v, %v; want none", left, err)
	}
}
