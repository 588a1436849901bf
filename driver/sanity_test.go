package driver_test

import (
	"context"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"github.com/berth-storage/berth/volume"
)

// TestSanity runs the CSI community's own suite against the driver's socket, with
// real devices and mounts. Ginkgo runs its specs once a process, so -count above
// 1 fails here.
func TestSanity(t *testing.T) {
	w := realWorld(t)
	socket := w.path("csi", "csi.sock")
	stop := w.serve(socket)
	config := sanity.NewTestConfig()
	config.Address = "unix://" + socket
	config.TargetPath = w.path("sanity-target")
	config.StagingPath = w.path("sanity-staging")
	config.TestVolumeSize = 32 * volume.MiB
	config.TestVolumeExpandSize = 64 * volume.MiB
	config.IdempotentCount = 3
	sanity.Test(t, config)
	stop()
	w.clean("after the suite")
}

// serve runs the driver's server until stop, which fails the test if the server
// did.
func (w *world) serve(socket string) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	server, err := w.d.Listen(ctx, "unix://"+socket)
	w.must(err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	return func() {
		w.t.Helper()
		cancel()
		w.must(<-done)
	}
}
