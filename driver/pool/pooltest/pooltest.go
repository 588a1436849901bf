// Package pooltest is the conformance suite of pool.Pool. Every backend passes it
// on real filesystems.
package pooltest

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/volume"
)

// Storage is where one test's pool lives, empty at first. It holds between 128 MiB
// and a few GiB.
type Storage struct {
	// Host is the machine that the pool runs on.
	Host host.Host
	// Open opens the pool. The suite closes it, and opens it again as a
	// process does that was restarted.
	Open func(ctx context.Context) (pool.Pool, error)
}

// Run checks that a backend keeps the contract of pool.Pool.
func Run(t *testing.T, newStorage func(t *testing.T) Storage) {
	for name, test := range map[string]func(t *testing.T, s Storage){
		"Identity":           identity,
		"Create":             create,
		"CreateRefusals":     createRefusals,
		"NotFound":           notFound,
		"Grow":               grow,
		"GrowAttached":       growAttached,
		"AllOfIt":            allOfIt,
		"Exhausted":          exhausted,
		"Delete":             deleteVolume,
		"DeleteInUse":        deleteInUse,
		"Attach":             attach,
		"MarkFormatted":      markFormatted,
		"CountNeverGoesBack": countNeverGoesBack,
		"OnChange":           onChange,
		"Concurrent":         concurrent,
	} {
		t.Run(name, func(t *testing.T) { test(t, newStorage(t)) })
	}
}

// opened is an open pool that deletes its volumes at the end.
func opened(t *testing.T, s Storage) pool.Pool {
	t.Helper()
	p, err := s.Open(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// reopened closes p and opens the pool again.
func reopened(t *testing.T, s Storage, p pool.Pool) pool.Pool {
	t.Helper()
	must(t, p.Close())
	again, err := s.Open(t.Context())
	must(t, err)
	return again
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func capacity(t *testing.T, p pool.Pool) volume.PoolCapacity {
	t.Helper()
	c, err := p.Capacity(t.Context())
	must(t, err)
	if c.Available < 0 || c.Available%pool.Unit != 0 || c.Available > c.Total {
		t.Errorf("%d bytes available of %d, want a multiple of %d within", c.Available, c.Total, pool.Unit)
	}
	return c
}

func make1(t *testing.T, p pool.Pool, name string, size int64) pool.Volume {
	t.Helper()
	v, err := p.Create(t.Context(), name, pool.Spec{Size: size, FSType: "ext4"})
	must(t, err)
	return v
}
