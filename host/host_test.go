package host_test

import (
	"testing"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/host/hosttest"
)

func TestSystemConforms(t *testing.T) {
	hosttest.Run(t, func(*testing.T) host.Host { return host.New(host.Options{}) })
}

// The tools of a host that is seen under another path are run inside of it.
func TestSystemConformsInAnotherRoot(t *testing.T) {
	hosttest.Run(t, func(*testing.T) host.Host { return host.New(host.Options{Root: "/proc/self/root"}) })
}

func TestFakeConforms(t *testing.T) {
	hosttest.Run(t, func(*testing.T) host.Host { return host.NewFake() })
}
