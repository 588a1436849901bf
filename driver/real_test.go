package driver_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/host/hosttest"
	"github.com/berth-storage/berth/volume"
)

// The tests of this file run on the machine: real loop devices, filesystems and
// mounts.

func realWorld(t *testing.T) *world { return newWorld(t, host.New(host.Options{})) }

func runs(t *testing.T, steps ...step) {
	t.Helper()
	for _, s := range steps {
		for _, time := range []string{"first", "second"} {
			if err := s.call(t.Context()); err != nil {
				t.Fatalf("%s, %s time: %v", s.name, time, err)
			}
		}
	}
}

func TestLifeOfExt4(t *testing.T) { lifeOnMachine(t, "ext4", 64*volume.MiB) }

func TestLifeOfXFS(t *testing.T) { lifeOnMachine(t, "xfs", 320*volume.MiB) }

// lifeOnMachine takes a volume through its life, each call twice: data is
// written, the volume grows under it and takes more than it could hold before,
// and goes.
func lifeOnMachine(t *testing.T, fsType string, size int64) {
	w := realWorld(t)
	l := &life{w: w, cap: mountCap(fsType, "noatime"), size: size}
	up, down := l.up(), l.down()
	runs(t, up[:3]...)
	data := bytes.Repeat([]byte("berth"), 1<<20)
	w.must(os.WriteFile(filepath.Join(w.target(), "data"), data, 0o600))
	if got := l.usage(t); got.GetTotal() < size*7/10 || got.GetTotal() > size {
		t.Errorf("the pod has %d bytes of a volume of %d", got.GetTotal(), size)
	}

	runs(t, up[3])
	if fsType == "ext4" && !hosttest.GrowsMountedExt4(t) {
		if err := l.growOnNode(t.Context()); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("growing without the capability: %v, want FailedPrecondition", err)
		}
		runs(t, down[0], down[1], up[1], up[2])
	}
	runs(t, up[4])
	if got := l.usage(t); got.GetTotal() < 2*size*7/10 || got.GetTotal() > 2*size {
		t.Errorf("after growth the pod has %d bytes of a volume of %d", got.GetTotal(), 2*size)
	}
	w.fill(size)

	// The driver is restarted, and the pod goes and comes back.
	w.restart()
	runs(t, down[0], down[1], up[1], up[2])
	got, err := os.ReadFile(filepath.Join(w.target(), "data"))
	w.must(err)
	if !bytes.Equal(got, data) {
		t.Error("the data changed")
	}
	if err := l.delete(t.Context()); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("deleting a volume in use: %v, want FailedPrecondition", err)
	}
	runs(t, down...)
	w.clean("at the end")
}

// usage is what the pod sees, in bytes.
func (l *life) usage(t *testing.T) *csi.VolumeUsage {
	t.Helper()
	resp, err := l.w.d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: l.id, VolumePath: l.w.target()})
	l.w.must(err)
	return resp.GetUsage()[0]
}

// fill writes a file of a size into the volume, to the disk.
func (w *world) fill(size int64) {
	w.t.Helper()
	f, err := os.Create(filepath.Join(w.target(), "fill"))
	w.must(err)
	block := bytes.Repeat([]byte{0xa5}, 1<<20)
	for range size / int64(len(block)) {
		_, err := f.Write(block)
		w.must(err)
	}
	w.must(f.Sync())
	w.must(f.Close())
}

func TestReadOnlyIsEnforced(t *testing.T) {
	w := realWorld(t)
	l := &life{w: w, cap: mountCap(""), size: 16 * volume.MiB}
	w.must(l.create(t.Context()))
	w.must(l.stage(t.Context()))
	other := w.path("pod", "read-only")
	w.must(l.publish(t.Context()))
	for range 2 {
		w.must(l.publishAt(t.Context(), other, true))
	}
	w.must(os.WriteFile(filepath.Join(w.target(), "data"), []byte("x"), 0o600))
	if err := os.WriteFile(filepath.Join(other, "data"), []byte("y"), 0o600); err == nil {
		t.Error("a write through the read-only path succeeded")
	}
	got, err := os.ReadFile(filepath.Join(other, "data"))
	w.must(err)
	if string(got) != "x" {
		t.Errorf("read %q through the read-only path", got)
	}
	w.must(l.unpublishAt(t.Context(), other))
	runs(t, l.down()...)
	w.clean("at the end")
}

// TestSmallest: the least that CreateVolume gives is a filesystem that works.
func TestSmallest(t *testing.T) {
	for fsType, ask := range map[string]int64{"ext4": 1, "xfs": 300 * volume.MiB} {
		t.Run(fsType, func(t *testing.T) {
			w := realWorld(t)
			l := &life{w: w, cap: mountCap(fsType), size: ask}
			runs(t, l.up()[:3]...)
			w.fill(volume.MiB)
			runs(t, l.down()...)
			w.clean("at the end")
		})
	}
}

// TestGrowThroughAReadOnlyPath: a filesystem grows although the pod at hand may
// only read it.
func TestGrowThroughAReadOnlyPath(t *testing.T) {
	w := realWorld(t)
	l := &life{w: w, cap: mountCap("xfs"), size: 300 * volume.MiB}
	runs(t, l.up()[:2]...)
	w.must(l.publishAt(t.Context(), w.target(), true))
	runs(t, l.up()[3:]...)
	if got := l.usage(t); got.GetTotal() < l.size*3/2 {
		t.Errorf("after growth the pod has %d bytes", got.GetTotal())
	}
	runs(t, l.down()...)
	w.clean("at the end")
}

func TestLifeOfBlock(t *testing.T) {
	w := realWorld(t)
	l := &life{w: w, cap: blockCap(), size: 8 * volume.MiB}
	up, down := l.up(), l.down()
	runs(t, up[:3]...)
	w.must(os.WriteFile(w.target(), []byte("raw"), 0o600))
	runs(t, up[3:]...)
	if got := l.usage(t); got.GetTotal() != 2*l.size {
		t.Errorf("the device has %d bytes, want %d", got.GetTotal(), 2*l.size)
	}
	loops, err := w.host.LoopsUnder(w.root)
	w.must(err)
	f, err := os.Open(loops[0].Device)
	w.must(err)
	got := make([]byte, 6)
	_, err = io.ReadFull(f, got)
	w.must(err)
	if string(got) != "raw\x00\x00\x00" {
		t.Errorf("the device begins with %q", got)
	}
	runs(t, down[0])
	if err := l.unstage(t.Context()); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("unstaging an open device: %v, want FailedPrecondition", err)
	}
	w.must(f.Close())
	runs(t, down[1:]...)
	w.clean("at the end")
}

// TestImageGoneUnderTheMount: what cannot be used any more can still be taken away.
func TestImageGoneUnderTheMount(t *testing.T) {
	w := realWorld(t)
	l := &life{w: w, cap: mountCap("ext4"), size: 16 * volume.MiB}
	up, down := l.up(), l.down()
	runs(t, up[:3]...)
	w.must(os.RemoveAll(w.path("pool", "images")))
	runs(t, down...)
	entries, err := w.host.LoopsUnder(w.root)
	w.must(err)
	mounts, err := w.host.MountsUnder(w.root)
	w.must(err)
	if len(entries)+len(mounts) > 0 {
		t.Errorf("left on the node: %v %v", entries, mounts)
	}
}

// TestNeverFormattedTwice: a volume that lost its filesystem is an alarm, not an
// empty disk.
func TestNeverFormattedTwice(t *testing.T) {
	w := realWorld(t)
	l := &life{w: w, cap: mountCap("ext4"), size: 16 * volume.MiB}
	w.must(l.create(t.Context()))
	w.must(l.stage(t.Context()))
	w.must(l.unstage(t.Context()))
	image := filepath.Join(w.path("pool", "images"), "pvc-1.img")
	f, err := os.OpenFile(image, os.O_WRONLY, 0)
	w.must(err)
	_, err = f.Write(make([]byte, 1<<20))
	w.must(err)
	w.must(f.Close())
	if err := l.stage(t.Context()); status.Code(err) != codes.DataLoss {
		t.Errorf("staging: %v, want DataLoss", err)
	}
	content, err := os.ReadFile(image)
	w.must(err)
	if !bytes.Equal(content[:1<<20], make([]byte, 1<<20)) {
		t.Error("the volume was formatted again")
	}
	w.must(l.delete(t.Context()))
	w.clean("at the end")
}
