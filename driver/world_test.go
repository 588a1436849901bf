package driver_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/driver"
	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/driver/pool/loopfile"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/volume"
)

// world is one node: a machine, a pool on it, a driver, and the CO's folders.
type world struct {
	t    *testing.T
	host host.Host
	root string
	pool pool.Pool
	d    *driver.Driver
}

func newWorld(t *testing.T, h host.Host) *world {
	t.Helper()
	w := &world{t: t, host: h, root: t.TempDir()}
	for _, dir := range []string{"pool", "pod"} {
		w.must(os.Mkdir(filepath.Join(w.root, dir), 0o700))
	}
	w.start()
	t.Cleanup(w.sweep)
	return w
}

// sweep takes away what a failed test left.
func (w *world) sweep() {
	ctx := context.Background()
	mounts, err := w.host.MountsUnder(w.root)
	w.must(err)
	for _, mount := range slices.Backward(mounts) {
		w.must(w.host.Unmount(ctx, mount.Target))
	}
	loops, err := w.host.LoopsUnder(w.root)
	w.must(err)
	for _, l := range loops {
		w.must(w.host.DetachLoop(ctx, l.File))
	}
	w.must(w.pool.Close())
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) start() {
	w.t.Helper()
	p, err := loopfile.Open(w.t.Context(), loopfile.Options{Name: "default", Dir: w.path("pool"), Host: w.host})
	w.must(err)
	w.pool = p
	w.d, err = driver.New(driver.Config{
		NodeID: "node-1", Pools: []pool.Pool{p}, Host: w.host, MaxVolumes: 7, Version: "v1",
		Topology: func(context.Context) (map[string]string, error) {
			return map[string]string{volume.LabelZone: "zone-1"}, nil
		},
	})
	w.must(err)
}

// restart is a crash of the driver's process: only what is on the disk and in
// the kernel remains.
func (w *world) restart() {
	w.t.Helper()
	w.must(w.pool.Close())
	w.start()
}

func (w *world) path(elem ...string) string {
	return filepath.Join(append([]string{w.root}, elem...)...)
}

func (w *world) staging() string { return w.path("staging") }
func (w *world) target() string  { return w.path("pod", "mount") }

// clean checks that nothing of any volume is left on the node.
func (w *world) clean(when string) {
	w.t.Helper()
	mounts, err := w.host.MountsUnder(w.root)
	w.must(err)
	loops, err := w.host.LoopsUnder(w.root)
	w.must(err)
	var files []string
	w.must(filepath.WalkDir(w.root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, strings.TrimPrefix(path, w.root+"/"))
		}
		return err
	}))
	left := map[string]any{"mounts": len(mounts), "loops": len(loops), "files": files, "target": exists(w.target())}
	want := map[string]any{
		"mounts": 0, "loops": 0, "target": false,
		"files": []string{"pool/allocations.json", "pool/lock", "pool/pool.json"},
	}
	if diff := cmp.Diff(want, left); diff != "" {
		w.t.Errorf("%s, what is left on the node (-want +got):\n%s", when, diff)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func mountCap(fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func blockCap() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

// life is one volume, as a CO sees it.
type life struct {
	w    *world
	cap  *csi.VolumeCapability
	size int64
	id   string
}

func (l *life) create(ctx context.Context) error {
	resp, err := l.w.d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{l.cap},
		CapacityRange: &csi.CapacityRange{RequiredBytes: l.size},
	})
	if err == nil {
		l.id = resp.GetVolume().GetVolumeId()
	}
	return err
}

func (l *life) stage(ctx context.Context) error {
	_, err := l.w.d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: l.id, StagingTargetPath: l.w.staging(), VolumeCapability: l.cap,
	})
	return err
}

func (l *life) publish(ctx context.Context) error { return l.publishAt(ctx, l.w.target(), false) }

func (l *life) publishAt(ctx context.Context, target string, readOnly bool) error {
	_, err := l.w.d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: l.id, StagingTargetPath: l.w.staging(), TargetPath: target, VolumeCapability: l.cap, Readonly: readOnly,
	})
	return err
}

func (l *life) grow(ctx context.Context) error {
	_, err := l.w.d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: l.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * l.size},
	})
	return err
}

func (l *life) growOnNode(ctx context.Context) error {
	_, err := l.w.d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: l.id, VolumePath: l.w.target(), StagingTargetPath: l.w.staging(), VolumeCapability: l.cap,
		CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * l.size},
	})
	return err
}

func (l *life) unpublish(ctx context.Context) error { return l.unpublishAt(ctx, l.w.target()) }

func (l *life) unpublishAt(ctx context.Context, target string) error {
	_, err := l.w.d.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: l.id, TargetPath: target})
	return err
}

func (l *life) unstage(ctx context.Context) error {
	_, err := l.w.d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: l.id, StagingTargetPath: l.w.staging()})
	return err
}

func (l *life) delete(ctx context.Context) error {
	_, err := l.w.d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: l.id})
	return err
}

// step is one call of a CO.
type step struct {
	name string
	call func(ctx context.Context) error
}

func (l *life) up() []step {
	return []step{
		{"CreateVolume", l.create},
		{"NodeStageVolume", l.stage},
		{"NodePublishVolume", l.publish},
		{"ControllerExpandVolume", l.grow},
		{"NodeExpandVolume", l.growOnNode},
	}
}

func (l *life) down() []step {
	return []step{
		{"NodeUnpublishVolume", l.unpublish}, {"NodeUnstageVolume", l.unstage}, {"DeleteVolume", l.delete},
	}
}
