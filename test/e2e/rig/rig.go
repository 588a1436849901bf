// Package rig starts a sandbox for a test and makes sure that nothing of it is
// left at the end.
package rig

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/internal/sandbox"
)

// BinDir is where the programs are.
func BinDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("BERTH_BIN_DIR")
	if dir == "" {
		t.Fatal("BERTH_BIN_DIR is not set: it names the folder of berth-sandbox, berth-scheduler, berth-extender and berth-agent; `make test` builds them and sets it")
	}
	return dir
}

// DataDir is a folder with a short path: sockets lie below it. At the end of the
// test nothing of it may be left.
func DataDir(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("/tmp", "bt")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "d")
	machine := host.New(host.Options{})
	t.Cleanup(func() {
		if err := sandbox.Leftovers(dir, machine); err != nil {
			t.Error(err)
		}
		// Whatever a failed test left.
		if _, err := sandbox.Remove(context.Background(), dir, machine); err != nil {
			t.Error(err)
		}
		if err := os.Remove(parent); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Start starts a cluster that ends with the test. Where it lies is the rig's
// choice.
func Start(t *testing.T, options sandbox.Options) *sandbox.Cluster {
	t.Helper()
	options.DataDir, options.BinDir = DataDir(t), BinDir(t)
	options.Progress = func(s sandbox.Step) { t.Log(s.Elapsed.Round(time.Millisecond), s.Name, s.State, s.Err) }
	c, err := sandbox.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}
