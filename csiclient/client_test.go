package csiclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// driver is a CSI driver that counts how often it is asked what it can do.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	stages bool
	asked  atomic.Int32
	busy   atomic.Bool
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(!d.busy.Load())}, nil
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	d.asked.Add(1)
	return &csi.GetPluginInfoResponse{Name: "test.berth.dev"}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	d.asked.Add(1)
	rsp := &csi.NodeGetCapabilitiesResponse{}
	if d.stages {
		rsp.Capabilities = []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
		}}}
	}
	return rsp, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	d.asked.Add(1)
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
			Type: csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		}},
	}}}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	d.asked.Add(1)
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}},
	}}}, nil
}

// serve runs d at path until the returned function is called.
func serve(t *testing.T, path string, d *driver) (stop func()) {
	t.Helper()
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	csi.RegisterIdentityServer(srv, d)
	csi.RegisterControllerServer(srv, d)
	csi.RegisterNodeServer(srv, d)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	return func() { srv.Stop(); <-done }
}

func TestCapabilitiesAreAskedOncePerConnection(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "csi.sock")
	c, err := New("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	old := &driver{}
	stop := serve(t, path, old)
	const stage = csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	for range 3 {
		if name, err := c.DriverName(ctx); err != nil || name != "test.berth.dev" {
			t.Fatalf("DriverName: %q, %v", name, err)
		}
		if has, err := c.NodeHas(ctx, stage); err != nil || has {
			t.Fatalf("NodeHas: %t, %v", has, err)
		}
		if has, err := c.ControllerHas(ctx, csi.ControllerServiceCapability_RPC_GET_CAPACITY); err != nil || !has {
			t.Fatalf("ControllerHas: %t, %v", has, err)
		}
		if has, err := c.PluginHas(ctx, csi.PluginCapability_Service_CONTROLLER_SERVICE); err != nil || !has {
			t.Fatalf("PluginHas: %t, %v", has, err)
		}
	}
	if got := old.asked.Load(); got != 4 {
		t.Errorf("the driver was asked %d times over one connection, want once for each of 4 questions", got)
	}

	// Another version of the driver behind the same socket has other answers.
	stop()
	defer serve(t, path, &driver{stages: true})()
	for {
		_, err := c.Identity().GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if has, err := c.NodeHas(ctx, stage); err != nil || !has {
		t.Errorf("after the driver's restart NodeHas = %t, %v; want the new driver's answer", has, err)
	}
}

func TestProbe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	c, err := New(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Probe(t.Context()); err == nil {
		t.Error("a driver that is not there passes the probe")
	}
	d := &driver{}
	defer serve(t, path, d)()
	if _, err := c.Identity().GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	if err := c.Probe(t.Context()); err != nil {
		t.Errorf("a ready driver: %v", err)
	}
	d.busy.Store(true)
	if err := c.Probe(t.Context()); err == nil {
		t.Error("a driver that says it is not ready passes the probe")
	}
}

func TestNewRefusesEndpoint(t *testing.T) {
	for _, endpoint := range []string{"", "csi.sock", "tcp://127.0.0.1:1", "unix://relative"} {
		if _, err := New(endpoint); err == nil {
			t.Errorf("endpoint %q was taken", endpoint)
		}
	}
}

func TestOutcomeOf(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   Outcome
	}{
		"nil":       {"success", nil, Done},
		"no status": {"an error from below gRPC may hide a success", errors.New("broken pipe"), Wait},
		"wrapped":   {"wrapping keeps the code", fmt.Errorf("staging: %w", status.Error(codes.InvalidArgument, "x")), Stop},
	}
	for code, want := range map[codes.Code]Outcome{
		codes.Canceled: Wait, codes.DeadlineExceeded: Wait, codes.Unavailable: Wait, codes.Aborted: Wait,
		codes.ResourceExhausted: Wait, codes.Unknown: Wait, codes.Code(99): Wait,
		codes.InvalidArgument: Stop, codes.OutOfRange: Stop, codes.Unimplemented: Stop,
		codes.NotFound: Retry, codes.AlreadyExists: Retry, codes.PermissionDenied: Retry, codes.Internal: Retry,
		codes.FailedPrecondition: Retry, codes.DataLoss: Retry, codes.Unauthenticated: Retry,
	} {
		cases[code.String()] = struct {
			reason string
			err    error
			want   Outcome
		}{"every code has its meaning", status.Error(code, "x"), want}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := OutcomeOf(tc.err); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
	if !IsExhausted(status.Error(codes.ResourceExhausted, "")) || IsExhausted(errors.New("x")) {
		t.Error("IsExhausted reads the code alone")
	}
	if !IsNotFound(status.Error(codes.NotFound, "")) || IsNotFound(nil) {
		t.Error("IsNotFound reads the code alone")
	}
}
