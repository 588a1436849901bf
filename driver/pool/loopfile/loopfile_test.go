package loopfile_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/driver/pool/loopfile"
	"github.com/berth-storage/berth/driver/pool/pooltest"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/volume"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// storage is a pool in a folder. Devices left at the end are taken away, and
// their number is no part of what is tested here.
func storage(t *testing.T, h host.Host, dir string, reserve int64) pooltest.Storage {
	t.Cleanup(func() {
		loops, err := h.LoopsUnder(dir)
		must(t, err)
		for _, l := range loops {
			must(t, h.DetachLoop(context.Background(), l.File))
		}
	})
	return pooltest.Storage{
		Host: h,
		Open: func(ctx context.Context) (pool.Pool, error) {
			p, err := loopfile.Open(ctx, loopfile.Options{Name: "default", Dir: dir, Reserve: reserve, Host: h})
			if err != nil {
				return nil, err
			}
			return p, nil
		},
	}
}

func TestConformsOnFakeHost(t *testing.T) {
	pooltest.Run(t, func(t *testing.T) pooltest.Storage {
		h := host.NewFake()
		h.SetCapacity(volume.GiB)
		return storage(t, h, t.TempDir(), 0)
	})
}

func TestConformsOnExt4(t *testing.T) { conformsOn(t, "ext4", 256*volume.MiB) }

func TestConformsOnXFS(t *testing.T) { conformsOn(t, "xfs", 400*volume.MiB) }

func conformsOn(t *testing.T, fstype string, size int64) {
	pooltest.Run(t, func(t *testing.T) pooltest.Storage {
		h := host.New(host.Options{})
		return storage(t, h, disk(t, h, fstype, size), 16*volume.MiB)
	})
}

// disk makes a filesystem of its own for a pool, and mounts it.
func disk(t *testing.T, h host.Host, fstype string, size int64) string {
	t.Helper()
	tmp := t.TempDir()
	image, dir := filepath.Join(tmp, "disk"), filepath.Join(tmp, "pool")
	must(t, os.Mkdir(dir, 0o700))
	must(t, h.Allocate(t.Context(), image, size))
	t.Cleanup(func() {
		must(t, h.Unmount(context.Background(), dir))
		must(t, h.DetachLoop(context.Background(), image))
	})
	l, err := h.AttachLoop(t.Context(), image)
	must(t, err)
	must(t, h.Format(t.Context(), l.Device, fstype, nil))
	must(t, h.MountFilesystem(t.Context(), l.Device, dir, fstype, nil))
	return dir
}
