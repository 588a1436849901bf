package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/host/process"
	"github.com/berth-storage/berth/volume"
)

func hold(t *testing.T, dir string) *dataDir {
	t.Helper()
	d, err := holdDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestSweep builds what a killed sandbox leaves, on the real machine: a pool on
// a loop device, a volume's image on that pool with a loop device of its own,
// mounted twice, and a process that sits in the mount.
func TestSweep(t *testing.T) {
	machine := host.New(host.Options{})
	dir := filepath.Join(t.TempDir(), "data")
	d := hold(t, dir)
	t.Cleanup(func() {
		if err := sweepDevices(t.Context(), machine, dir); err != nil {
			t.Log(err)
		}
	})
	n := d.nodeList(1, 1)[0]
	attach(t, machine, n.PoolImage(), 320*volume.MiB, n.Pool(), "xfs")
	mount := filepath.Join(n.Root(), "pods/uid/volume")
	attach(t, machine, filepath.Join(n.Pool(), "volume.img"), 32*volume.MiB, mount, "ext4")
	second := filepath.Join(n.Root(), "pods/uid/second")
	if err := os.MkdirAll(second, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := machine.BindMount(t.Context(), mount, second, true); err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(process.Spec{
		Name: "sitter", Path: "/bin/sleep", Args: []string{"1000"}, Dir: mount, Marker: d.marker(), Detached: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	err = Leftovers(dir, machine)
	for _, want := range []string{p.ID().String(), mount, n.PoolImage()} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Leftovers: %v, want %s in it", err, want)
		}
	}
	// As after a kill: nobody holds the folder.
	if err := d.lockFile.Unlock(); err != nil {
		t.Fatal(err)
	}
	found, err := Remove(t.Context(), dir, machine)
	if err != nil || !found {
		t.Fatalf("Remove: found %t, %v", found, err)
	}
	if err := Leftovers(dir, machine); err != nil {
		t.Error(err)
	}
	// Again, on nothing.
	if found, err := Remove(t.Context(), dir, machine); err != nil || found {
		t.Errorf("Remove of nothing: found %t, %v", found, err)
	}
}

// attach makes a file into a mounted filesystem.
func attach(t *testing.T, machine host.Host, file string, size int64, target, fstype string) {
	t.Helper()
	for _, dir := range []string{filepath.Dir(file), target} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := machine.Allocate(t.Context(), file, size); err != nil {
		t.Fatal(err)
	}
	loop, err := machine.AttachLoop(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if err := machine.Format(t.Context(), loop.Device, fstype, nil); err != nil {
		t.Fatal(err)
	}
	if err := machine.MountFilesystem(t.Context(), loop.Device, target, fstype, nil); err != nil {
		t.Fatal(err)
	}
}

// TestForeignFolder holds the sandbox off files that are not its own.
func TestForeignFolder(t *testing.T) {
	machine := host.New(host.Options{})
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := holdDataDir(dir); err == nil || !strings.Contains(err.Error(), "not of a sandbox") {
		t.Errorf("holding a folder of somebody else: %v", err)
	}
	if found, err := Remove(t.Context(), dir, machine); err != nil || found {
		t.Errorf("removing it: found %t, %v", found, err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestOneHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := hold(t, dir)
	_, err := holdDataDir(dir)
	var running *RunningError
	if !errors.As(err, &running) || running.Supervisor.PID != os.Getpid() {
		t.Errorf("a second holder: %v, want a RunningError with this process", err)
	}
	if err := d.empty(); err != nil {
		t.Fatal(err)
	}
	if err := d.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	again := hold(t, dir)
	if err := again.remove(); err != nil {
		t.Error(err)
	}
}
