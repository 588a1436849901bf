package driver_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berth-storage/berth/driver"
	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/volume"
)

func fakeWorld(t *testing.T) (*world, *host.Fake) {
	h := host.NewFake()
	return newWorld(t, h), h
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v, want code %v", what, err, want)
	}
}

func TestNewRefuses(t *testing.T) {
	w, h := fakeWorld(t)
	good := driver.Config{NodeID: "n", Pools: []pool.Pool{w.pool}, Host: h}
	for reason, c := range map[string]struct {
		change   func(*driver.Config)
		wantText string
	}{
		"no node":         {func(c *driver.Config) { c.NodeID = "" }, "NodeID"},
		"no host":         {func(c *driver.Config) { c.Host = nil }, "Host"},
		"no pool":         {func(c *driver.Config) { c.Pools = nil }, "Pools"},
		"a pool twice":    {func(c *driver.Config) { c.Pools = append(c.Pools, w.pool) }, "Pools"},
		"negative volume": {func(c *driver.Config) { c.MaxVolumes = -1 }, "MaxVolumes"},
	} {
		t.Run(reason, func(t *testing.T) {
			bad := good
			c.change(&bad)
			if _, err := driver.New(bad); err == nil || !strings.Contains(err.Error(), c.wantText) {
				t.Errorf("error %v, want one that names %s", err, c.wantText)
			}
		})
	}
}

func TestNodeGetInfo(t *testing.T) {
	w, _ := fakeWorld(t)
	got, err := w.d.NodeGetInfo(t.Context(), nil)
	w.must(err)
	want := &csi.NodeGetInfoResponse{NodeId: "node-1", MaxVolumesPerNode: 7, AccessibleTopology: &csi.Topology{
		Segments: map[string]string{volume.TopologyNodeKey: "node-1", volume.LabelZone: "zone-1"},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}

	d, err := driver.New(driver.Config{
		NodeID: "n", Pools: []pool.Pool{w.pool}, Host: w.host,
		Topology: func(context.Context) (map[string]string, error) { return nil, errors.New("no zone yet") },
	})
	w.must(err)
	_, err = d.NodeGetInfo(t.Context(), nil)
	wantCode(t, "a node without its labels", err, codes.Unavailable)
}

func TestCreateVolumeAnswer(t *testing.T) {
	w, _ := fakeWorld(t)
	req := &csi.CreateVolumeRequest{
		Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{mountCap("")},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 5 * volume.MiB},
		Parameters:    map[string]string{volume.ParameterPool: "default", volume.ParameterFSType: "ext4"},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{
			{Segments: map[string]string{volume.TopologyNodeKey: "node-1", volume.LabelZone: "zone-1"}},
		}},
	}
	var answers []*csi.CreateVolumeResponse
	for range 2 {
		got, err := w.d.CreateVolume(t.Context(), req)
		w.must(err)
		answers = append(answers, got)
	}
	c, err := w.pool.Capacity(t.Context())
	w.must(err)
	want := &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: w.pool.UUID() + "/pvc-1", CapacityBytes: 8 * volume.MiB,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{volume.TopologyNodeKey: "node-1"}}},
		VolumeContext: map[string]string{
			volume.ContextPool: w.pool.UUID(), volume.ContextAllocation: strconv.FormatInt(c.Allocation, 10),
		},
	}}
	for _, got := range answers {
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
	}
}

func TestCreateVolumeRefuses(t *testing.T) {
	w, h := fakeWorld(t)
	h.SetCapacity(volume.GiB)
	l := &life{w: w, cap: mountCap("ext4"), size: 8 * volume.MiB}
	w.must(l.create(t.Context()))
	for reason, c := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		want   codes.Code
	}{
		"no name":         {func(r *csi.CreateVolumeRequest) { r.Name = "" }, codes.InvalidArgument},
		"no capability":   {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }, codes.InvalidArgument},
		"no such pool":    {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{volume.ParameterPool: "x"} }, codes.InvalidArgument},
		"bad parameter":   {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"type": "x"} }, codes.InvalidArgument},
		"mutable":         {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"type": "x"} }, codes.InvalidArgument},
		"from a snapshot": {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }, codes.InvalidArgument},
		"too large": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 2 * volume.GiB}
		}, codes.ResourceExhausted},
		"on another node": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{
				{Segments: map[string]string{volume.TopologyNodeKey: "node-2"}},
			}}
		}, codes.ResourceExhausted},
		"known with another size": {func(r *csi.CreateVolumeRequest) {
			r.Name, r.CapacityRange = "pvc-1", &csi.CapacityRange{RequiredBytes: 12 * volume.MiB}
		}, codes.AlreadyExists},
		"known and larger than the limit": {func(r *csi.CreateVolumeRequest) {
			r.Name, r.CapacityRange = "pvc-1", &csi.CapacityRange{LimitBytes: 4 * volume.MiB}
		}, codes.AlreadyExists},
		"known with another filesystem": {func(r *csi.CreateVolumeRequest) {
			r.Name, r.VolumeCapabilities = "pvc-1", []*csi.VolumeCapability{blockCap()}
		}, codes.AlreadyExists},
	} {
		t.Run(reason, func(t *testing.T) {
			req := &csi.CreateVolumeRequest{
				Name: "pvc-2", VolumeCapabilities: []*csi.VolumeCapability{mountCap("ext4")},
				CapacityRange: &csi.CapacityRange{RequiredBytes: 8 * volume.MiB},
			}
			c.change(req)
			_, err := w.d.CreateVolume(t.Context(), req)
			wantCode(t, "CreateVolume", err, c.want)
		})
	}
	all, err := w.pool.List(t.Context())
	w.must(err)
	if len(all) != 1 {
		t.Errorf("the pool holds %v, want the first volume alone", all)
	}
}

// A volume that grew answers its first CreateVolume, repeated, with success.
func TestCreateVolumeRepeatedAfterGrowth(t *testing.T) {
	w, _ := fakeWorld(t)
	l := &life{w: w, cap: mountCap("ext4"), size: 8 * volume.MiB}
	runs(t, step{"CreateVolume", l.create}, step{"ControllerExpandVolume", l.grow}, step{"CreateVolume", l.create})
}

func TestDeleteVolume(t *testing.T) {
	w, _ := fakeWorld(t)
	for reason, c := range map[string]struct {
		id   string
		want codes.Code
	}{
		"no id":                   {"", codes.InvalidArgument},
		"no volume has this id":   {"something", codes.OK},
		"not in the pool":         {w.pool.UUID() + "/none", codes.OK},
		"another node's volume":   {"6a1e9dbb-3b3e-4b0c-9c40-000000000000/pvc-1", codes.FailedPrecondition},
		"a name that is no name":  {w.pool.UUID() + "/../../etc", codes.OK},
		"a name that is a folder": {w.pool.UUID() + "/..", codes.OK},
	} {
		t.Run(reason, func(t *testing.T) {
			_, err := w.d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: c.id})
			wantCode(t, "DeleteVolume", err, c.want)
		})
	}
}

func TestGetCapacity(t *testing.T) {
	w, _ := fakeWorld(t)
	c, err := w.pool.Capacity(t.Context())
	w.must(err)
	for reason, test := range map[string]struct {
		req      *csi.GetCapacityRequest
		want     int64
		wantLow  int64
		wantCode codes.Code
	}{
		"nothing asked":   {req: &csi.GetCapacityRequest{}, want: c.Available, wantLow: pool.Unit},
		"the pool, here":  {req: &csi.GetCapacityRequest{Parameters: map[string]string{volume.ParameterPool: "default"}, AccessibleTopology: &csi.Topology{Segments: map[string]string{volume.LabelZone: "zone-1"}}}, want: c.Available, wantLow: pool.Unit},
		"xfs":             {req: &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{mountCap("xfs")}}, want: c.Available, wantLow: 300 * volume.MiB},
		"another pool":    {req: &csi.GetCapacityRequest{Parameters: map[string]string{volume.ParameterPool: "x"}}},
		"another node":    {req: &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{volume.TopologyNodeKey: "x"}}}},
		"not to be had":   {req: &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{mountCap("ntfs")}}},
		"bad parameter":   {req: &csi.GetCapacityRequest{Parameters: map[string]string{"type": "x"}}, wantCode: codes.InvalidArgument},
		"reserved ignore": {req: &csi.GetCapacityRequest{Parameters: map[string]string{volume.ParameterFSType: "xfs"}}, want: c.Available, wantLow: pool.Unit},
	} {
		t.Run(reason, func(t *testing.T) {
			got, err := w.d.GetCapacity(t.Context(), test.req)
			wantCode(t, "GetCapacity", err, test.wantCode)
			if got.GetAvailableCapacity() != test.want || got.GetMaximumVolumeSize().GetValue() != test.want ||
				got.GetMinimumVolumeSize().GetValue() != test.wantLow {
				t.Errorf("got %v, want %d available in one volume, and none below %d", got, test.want, test.wantLow)
			}
		})
	}
}

func TestNodeRefusals(t *testing.T) {
	w, _ := fakeWorld(t)
	l := &life{w: w, cap: mountCap("ext4"), size: 8 * volume.MiB}
	w.must(l.create(t.Context()))
	wantCode(t, "publishing before staging", l.publish(t.Context()), codes.FailedPrecondition)
	wantCode(t, "growing on the node first", l.growOnNode(t.Context()), codes.FailedPrecondition)
	w.must(l.grow(t.Context()))
	wantCode(t, "growing what is not mounted", l.growOnNode(t.Context()), codes.NotFound)
	for reason, capability := range map[string]*csi.VolumeCapability{
		"another filesystem": mountCap("xfs"), "a raw device": blockCap(), "a flag that is no flag": mountCap("ext4", "bind"),
	} {
		other := &life{w: w, cap: capability, id: l.id}
		if err := other.stage(t.Context()); err == nil {
			t.Errorf("staged as %s", reason)
		}
	}
	loops, err := w.host.LoopsUnder(w.root)
	w.must(err)
	if len(loops) > 0 {
		t.Errorf("after refusals, %v are attached", loops)
	}
	unknown := &life{w: w, cap: l.cap, size: l.size, id: w.pool.UUID() + "/none"}
	for _, s := range unknown.up()[1:] {
		wantCode(t, s.name+" of no volume", s.call(t.Context()), codes.NotFound)
	}
	runs(t, unknown.down()...)
}

// A folder that shows something else is neither taken for the volume nor hidden.
func TestSomethingElseIsMounted(t *testing.T) {
	w, h := fakeWorld(t)
	l := &life{w: w, cap: mountCap("ext4"), size: 8 * volume.MiB}
	w.must(l.create(t.Context()))
	w.must(os.Mkdir(w.staging(), 0o700))
	w.must(h.BindMount(t.Context(), w.path("pod"), w.staging(), false))
	wantCode(t, "staging over it", l.stage(t.Context()), codes.FailedPrecondition)
	wantCode(t, "publishing from it", l.publish(t.Context()), codes.FailedPrecondition)
	mounts, err := h.MountsUnder(w.root)
	w.must(err)
	if len(mounts) != 1 {
		t.Errorf("mounts: %v, want the other one alone", mounts)
	}
}

func TestOneWriter(t *testing.T) {
	for kind, capability := range map[string]*csi.VolumeCapability{"mount": mountCap("ext4"), "block": blockCap()} {
		t.Run(kind, func(t *testing.T) {
			w, _ := fakeWorld(t)
			capability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
			l := &life{w: w, cap: capability, size: 8 * volume.MiB}
			runs(t, l.up()[:3]...)
			other := w.path("pod", "other")
			wantCode(t, "a second target", l.publishAt(t.Context(), other, false), codes.FailedPrecondition)
			w.must(l.unpublish(t.Context()))
			w.must(l.publishAt(t.Context(), other, false))
			w.must(l.unpublishAt(t.Context(), other))
			runs(t, l.down()...)
			w.clean("at the end")
		})
	}
}

func TestUnpublishKeepsStrangersData(t *testing.T) {
	w, _ := fakeWorld(t)
	l := &life{w: w, cap: mountCap("ext4"), id: w.pool.UUID() + "/none"}
	w.must(os.Mkdir(w.target(), 0o700))
	w.must(os.WriteFile(filepath.Join(w.target(), "precious"), []byte("x"), 0o600))
	if err := l.unpublish(t.Context()); err == nil {
		t.Error("a folder with data was taken for the volume's target")
	}
	if !exists(filepath.Join(w.target(), "precious")) {
		t.Error("the data is gone")
	}
}

func TestReboot(t *testing.T) {
	w, h := fakeWorld(t)
	l := &life{w: w, cap: mountCap("ext4"), size: 8 * volume.MiB}
	up, down := l.up(), l.down()
	runs(t, up[:3]...)
	h.Reboot()
	w.restart()
	runs(t, up[1:3]...)
	if kind, size := h.Filesystem(filepath.Join(w.path("pool", "images"), "pvc-1.img")); kind != "ext4" || size != l.size {
		t.Errorf("the image holds %q of %d bytes", kind, size)
	}
	runs(t, down...)
	w.clean("at the end")
}

func TestServe(t *testing.T) {
	w, _ := fakeWorld(t)
	socket := w.path("csi", "csi.sock")

	// A socket from a crash: bound, and nobody listens.
	w.must(os.MkdirAll(filepath.Dir(socket), 0o700))
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	w.must(err)
	left.SetUnlinkOnClose(false)
	w.must(left.Close())

	stop := w.serve(socket)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.must(err)
	defer conn.Close()
	client := csi.NewIdentityClient(conn)
	got, err := client.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	w.must(err)
	want := &csi.GetPluginInfoResponse{Name: volume.DriverName, VendorVersion: "v1"}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
	ready, err := client.Probe(t.Context(), &csi.ProbeRequest{})
	w.must(err)
	if !ready.GetReady().GetValue() {
		t.Error("the driver is not ready")
	}
	info, err := os.Lstat(socket)
	w.must(err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, want 0600", info.Mode().Perm())
	}
	if _, err := w.d.Listen(t.Context(), socket); err == nil {
		t.Error("a second driver took the socket of the first")
	}
	stop()
	if exists(socket) {
		t.Error("the socket is still there after the end")
	}
}

// TestServeEndsBeforeItBegins: an end that was asked for early is no failure.
func TestServeEndsBeforeItBegins(t *testing.T) {
	w, _ := fakeWorld(t)
	socket := w.path("csi", "csi.sock")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		server, err := w.d.Listen(t.Context(), socket)
		w.must(err)
		w.must(server.Serve(ended))
		if exists(socket) {
			t.Fatal("the socket is still there after the end")
		}
	}
}

func TestListenRefuses(t *testing.T) {
	w, _ := fakeWorld(t)
	file := w.path("file")
	w.must(os.WriteFile(file, []byte("x"), 0o600))
	for reason, endpoint := range map[string]string{"a file": file, "tcp": "tcp://127.0.0.1:1", "a relative path": "csi.sock", "nothing": ""} {
		if _, err := w.d.Listen(t.Context(), endpoint); err == nil {
			t.Errorf("%s: served", reason)
		}
	}
	if !exists(file) {
		t.Error("the file is gone")
	}
}

// TestServeLeavesASuccessorsSocket: a driver that ends late does not take away the
// socket of the one that has replaced it.
func TestServeLeavesASuccessorsSocket(t *testing.T) {
	w, _ := fakeWorld(t)
	socket := w.path("csi.sock")
	stop := w.serve(socket)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.must(err)
	defer conn.Close()
	_, err = csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	w.must(err)
	w.must(os.Remove(socket))
	successor, err := net.Listen("unix", socket)
	w.must(err)
	defer successor.Close()
	stop()
	if !exists(socket) {
		t.Error("the successor's socket is gone")
	}
}
