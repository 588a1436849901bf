// Package fakedriver is a CSI node driver for tests. It serves a real socket and
// keeps a small world: what is staged and published where. The world is also a
// mount table. It outlives the agent under test, as a driver and a kernel do,
// and it notes every call that a driver may take amiss.
package fakedriver

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-storage/berth/host"
)

// Driver is one fake driver. Fields are set before Start.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	Name string
	// Capabilities of the Node service.
	Capabilities []csi.NodeServiceCapability_RPC_Type
	// Hook, if set, is asked before the effect of each call and after it; an
	// error ends the call there.
	Hook func(method string, after bool) error

	mu sync.Mutex
	// Staged maps staging paths to volumes; Published maps target paths.
	// Guarded by mu.
	Staged, Published map[string]string
	// Sizes are what volumes were grown to. Guarded by mu.
	Sizes map[string]int64
	// Violations are calls that break the CSI specification. Guarded by mu.
	Violations []string
	// Requests are the requests of each method, in order. Guarded by mu.
	Requests map[string][]any
	busy     map[string]bool
}

// New makes a driver that stages and grows.
func New(name string) *Driver {
	return &Driver{
		Name: name,
		Capabilities: []csi.NodeServiceCapability_RPC_Type{
			csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		},
		Staged: map[string]string{}, Published: map[string]string{}, Sizes: map[string]int64{},
		Requests: map[string][]any{}, busy: map[string]bool{},
	}
}

// Start serves the driver on a socket until the test ends.
func (d *Driver) Start(t testing.TB, socket string) *grpc.Server {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	go server.Serve(l) //nolint:errcheck // ends with Stop
	t.Cleanup(server.Stop)
	return server
}

// World lists what is in force, for comparison.
func (d *Driver) World() (staged, published, violations []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.Staged)), slices.Sorted(maps.Keys(d.Published)), slices.Clone(d.Violations)
}

// Size is what a volume was grown to.
func (d *Driver) Size(id string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Sizes[id]
}

// Calls are the requests of a method so far.
func (d *Driver) Calls(method string) []any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.Requests[method])
}

// Reboot takes every mount away, as the end of the machine's power does.
func (d *Driver) Reboot() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.Staged)
	clear(d.Published)
}

// MountsUnder is the mount table.
func (d *Driver) MountsUnder(prefix string) ([]host.MountPoint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var rows []host.MountPoint
	for _, table := range []map[string]string{d.Staged, d.Published} {
		for path := range table {
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				rows = append(rows, host.MountPoint{Target: path, Source: d.Name})
			}
		}
	}
	return rows, nil
}

// do wraps the effect of one call: one call per volume at a time, and the hook
// on both sides.
func (d *Driver) do(method, id string, request any, effect func() error) error {
	d.mu.Lock()
	d.Requests[method] = append(d.Requests[method], request)
	if d.busy[id] {
		d.violate("%s of %s while another call runs", method, id)
	}
	d.busy[id] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.busy, id)
		d.mu.Unlock()
	}()
	if d.Hook != nil {
		if err := d.Hook(method, false); err != nil {
			return err
		}
	}
	d.mu.Lock()
	err := effect()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if d.Hook != nil {
		return d.Hook(method, true)
	}
	return nil
}

// violate needs mu.
func (d *Driver) violate(format string, args ...any) {
	d.Violations = append(d.Violations, fmt.Sprintf(format, args...))
}

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.Name, VendorVersion: "1"}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "id-of-node", AccessibleTopology: &csi.Topology{Segments: map[string]string{"topology.example/node": "n1"}}}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	rsp := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.Capabilities {
		rsp.Capabilities = append(rsp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return rsp, nil
}

// NodeStageVolume implements csi.NodeServer.
func (d *Driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	err := d.do("NodeStageVolume", r.VolumeId, r, func() error {
		if info, err := os.Stat(r.StagingTargetPath); err != nil || !info.IsDir() {
			d.violate("staging path %s was not made", r.StagingTargetPath)
		}
		d.Staged[r.StagingTargetPath] = r.VolumeId
		return nil
	})
	return &csi.NodeStageVolumeResponse{}, err
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	err := d.do("NodeUnstageVolume", r.VolumeId, r, func() error {
		for target, id := range d.Published {
			if id == r.VolumeId {
				d.violate("unstaged %s, which is published at %s", id, target)
			}
		}
		delete(d.Staged, r.StagingTargetPath)
		return nil
	})
	return &csi.NodeUnstageVolumeResponse{}, err
}

// NodePublishVolume implements csi.NodeServer.
func (d *Driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	err := d.do("NodePublishVolume", r.VolumeId, r, func() error {
		if slices.Contains(d.Capabilities, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) && d.Staged[r.StagingTargetPath] != r.VolumeId {
			return status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %q", r.VolumeId, r.StagingTargetPath)
		}
		if err := os.MkdirAll(r.TargetPath, 0o750); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		d.Published[r.TargetPath] = r.VolumeId
		return nil
	})
	return &csi.NodePublishVolumeResponse{}, err
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := d.do("NodeUnpublishVolume", r.VolumeId, r, func() error {
		delete(d.Published, r.TargetPath)
		if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
			return status.Error(codes.Internal, err.Error())
		}
		return nil
	})
	return &csi.NodeUnpublishVolumeResponse{}, err
}

// NodeExpandVolume implements csi.NodeServer.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	err := d.do("NodeExpandVolume", r.VolumeId, r, func() error {
		if d.Published[r.VolumePath] != r.VolumeId {
			return status.Errorf(codes.NotFound, "volume %s is not published at %q", r.VolumeId, r.VolumePath)
		}
		d.Sizes[r.VolumeId] = max(d.Sizes[r.VolumeId], r.GetCapacityRange().GetRequiredBytes())
		return nil
	})
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, err
}
