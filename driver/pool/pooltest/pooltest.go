// Package pooltest is the conformance suite of pool.Pool. Every backend passes it
// on real filesystems.
package pooltest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

func identity(t *testing.T, s Storage) {
	p, err := s.Open(t.Context())
	must(t, err)
	uuid, name := p.UUID(), p.Name()
	if uuid == "" || name == "" {
		t.Errorf("uuid %q and name %q must not be empty", uuid, name)
	}
	same(t, "capacity's pool", uuid, capacity(t, p).Pool)
	if _, err := s.Open(t.Context()); err == nil {
		t.Error("opening an open pool succeeded")
	}
	p = reopened(t, s, p)
	same(t, "uuid after opening again", uuid, p.UUID())
	must(t, p.Close())
}

func create(t *testing.T, s Storage) {
	p, err := s.Open(t.Context())
	must(t, err)
	before := capacity(t, p)
	want := pool.Volume{Name: "a", Size: 3 * pool.Unit, FSType: "ext4"}
	v := make1(t, p, "a", 2*pool.Unit+1)
	after := capacity(t, p)
	if v.Allocation <= before.Allocation || v.Allocation > after.Allocation {
		t.Errorf("allocation %d, want above %d and at most %d", v.Allocation, before.Allocation, after.Allocation)
	}
	if got := before.Available - after.Available; got < v.Size {
		t.Errorf("%d bytes less available after a volume of %d", got, v.Size)
	}
	want.Allocation = v.Allocation
	same(t, "volume", want, v)
	same(t, "created again", want, make1(t, p, "a", 3*pool.Unit))
	same(t, "capacity after a repeat", after, capacity(t, p))

	p = reopened(t, s, p)
	got, err := p.Lookup(t.Context(), "a")
	must(t, err)
	same(t, "looked up after opening again", want, got)
	raw, err := p.Create(t.Context(), "b", pool.Spec{Size: 1})
	must(t, err)
	all, err := p.List(t.Context())
	must(t, err)
	same(t, "list", []pool.Volume{want, raw}, all)
	must(t, p.Close())
}

func createRefusals(t *testing.T, s Storage) {
	p := opened(t, s)
	v := make1(t, p, "a", pool.Unit)
	for reason, spec := range map[string]pool.Spec{
		"another size":       {Size: 2 * pool.Unit, FSType: "ext4"},
		"another filesystem": {Size: pool.Unit, FSType: "xfs"},
	} {
		_, err := p.Create(t.Context(), "a", spec)
		var exists *pool.ExistsError
		if !errors.As(err, &exists) {
			t.Errorf("%s: %v, want *ExistsError", reason, err)
			continue
		}
		same(t, reason, pool.ExistsError{Have: v, Asked: spec}, *exists)
	}
	for reason, size := range map[string]int64{"zero": 0, "negative": -1} {
		if _, err := p.Create(t.Context(), "b", pool.Spec{Size: size}); err == nil {
			t.Errorf("size %s: created", reason)
		}
	}
	for _, name := range []string{"", ".", "..", "../a", "a/b", ".hidden", "a b"} {
		if _, err := p.Create(t.Context(), name, pool.Spec{Size: 1}); err == nil {
			t.Errorf("name %q: created", name)
		}
	}
}

func notFound(t *testing.T, s Storage) {
	p := opened(t, s)
	for _, name := range []string{"none", "../none", "", "a/b"} {
		_, lookup := p.Lookup(t.Context(), name)
		_, grow := p.Grow(t.Context(), name, pool.Unit)
		_, attach := p.Attach(t.Context(), name)
		for what, err := range map[string]error{
			"Lookup": lookup, "Grow": grow, "Attach": attach,
			"Delete":        p.Delete(t.Context(), name),
			"MarkFormatted": p.MarkFormatted(t.Context(), name),
		} {
			if !errors.Is(err, pool.ErrNotFound) {
				t.Errorf("%s(%q): %v, want ErrNotFound", what, name, err)
			}
		}
		must(t, p.Detach(t.Context(), name))
		device, err := p.Attached(t.Context(), name)
		must(t, err)
		same(t, "device", "", device)
	}
}

func grow(t *testing.T, s Storage) {
	p := opened(t, s)
	v := make1(t, p, "a", pool.Unit)
	for _, step := range []struct {
		reason    string
		ask, want int64
		counts    bool
	}{
		{"smaller", 1, pool.Unit, false},
		{"the same", pool.Unit, pool.Unit, false},
		{"rounded up", pool.Unit + 1, 2 * pool.Unit, true},
		{"repeated", pool.Unit + 1, 2 * pool.Unit, false},
		{"again", 5 * pool.Unit, 5 * pool.Unit, true},
	} {
		before := capacity(t, p)
		got, err := p.Grow(t.Context(), "a", step.ask)
		must(t, err)
		if counted := got.Allocation > before.Allocation; counted != step.counts {
			t.Errorf("%s: allocation %d after %d, want counted: %t", step.reason, got.Allocation, before.Allocation, step.counts)
		}
		want := pool.Volume{Name: "a", Size: step.want, FSType: v.FSType, Allocation: got.Allocation}
		same(t, step.reason, want, got)
		found, err := p.Lookup(t.Context(), "a")
		must(t, err)
		same(t, step.reason+", looked up", want, found)
	}
}

func growAttached(t *testing.T, s Storage) {
	p := opened(t, s)
	make1(t, p, "a", pool.Unit)
	device, err := p.Attach(t.Context(), "a")
	must(t, err)
	defer func() { must(t, p.Detach(context.Background(), "a")) }()
	_, err = p.Grow(t.Context(), "a", 3*pool.Unit)
	must(t, err)
	size, err := s.Host.BlockSize(device)
	must(t, err)
	same(t, "size of the device", 3*pool.Unit, size)
}

// allOfIt: the published number is a promise.
func allOfIt(t *testing.T, s Storage) {
	p := opened(t, s)
	before := capacity(t, p)
	make1(t, p, "a", before.Available)
	if got := capacity(t, p).Available; got >= pool.Unit*4 {
		t.Errorf("%d bytes are available after a volume of all of them", got)
	}
	must(t, p.Delete(t.Context(), "a"))
	if got := capacity(t, p).Available; got < before.Available-2*pool.Unit {
		t.Errorf("%d bytes are available after the volume is gone, %d before it came", got, before.Available)
	}
	make1(t, p, "a", pool.Unit)
	_, err := p.Grow(t.Context(), "a", pool.Unit+capacity(t, p).Available)
	must(t, err)
}

func exhausted(t *testing.T, s Storage) {
	p := opened(t, s)
	v := make1(t, p, "a", pool.Unit)
	free := capacity(t, p).Available
	_, createErr := p.Create(t.Context(), "b", pool.Spec{Size: free + pool.Unit})
	_, growErr := p.Grow(t.Context(), "a", pool.Unit+free+pool.Unit)
	for what, err := range map[string]error{"Create": createErr, "Grow": growErr} {
		var e *pool.ExhaustedError
		if !errors.As(err, &e) {
			t.Errorf("%s: %v, want *ExhaustedError", what, err)
			continue
		}
		same(t, what, pool.ExhaustedError{Pool: p.Name(), Asked: free + pool.Unit, Free: free}, *e)
	}
	got, err := p.Lookup(t.Context(), "a")
	must(t, err)
	same(t, "the volume that could not grow", v, got)
	if _, err := p.Lookup(t.Context(), "b"); !errors.Is(err, pool.ErrNotFound) {
		t.Errorf("the volume that did not fit: %v, want ErrNotFound", err)
	}
	same(t, "available", free, capacity(t, p).Available)
}

func deleteVolume(t *testing.T, s Storage) {
	p := opened(t, s)
	make1(t, p, "a", 2*pool.Unit)
	kept := make1(t, p, "kept", pool.Unit)
	_, err := p.Attach(t.Context(), "a")
	must(t, err)
	must(t, p.MarkFormatted(t.Context(), "a"))
	before := capacity(t, p)
	must(t, p.Delete(t.Context(), "a"))
	after := capacity(t, p)
	if after.Allocation <= before.Allocation || after.Available <= before.Available {
		t.Errorf("capacity went from %+v to %+v, want a higher count and more bytes", before, after)
	}
	for range 2 {
		if err := p.Delete(t.Context(), "a"); !errors.Is(err, pool.ErrNotFound) {
			t.Errorf("deleting again: %v, want ErrNotFound", err)
		}
	}
	device, err := p.Attached(t.Context(), "a")
	must(t, err)
	same(t, "device of the deleted volume", "", device)
	all, err := p.List(t.Context())
	must(t, err)
	same(t, "list", []pool.Volume{kept}, all)
	if again := make1(t, p, "a", pool.Unit); again.Formatted {
		t.Error("a new volume of the old name is called formatted")
	}
}

func deleteInUse(t *testing.T, s Storage) {
	p := opened(t, s)
	v := make1(t, p, "a", 4*pool.Unit)
	device, err := p.Attach(t.Context(), "a")
	must(t, err)
	dir := filepath.Join(t.TempDir(), "mount")
	must(t, os.Mkdir(dir, 0o700))
	must(t, s.Host.Format(t.Context(), device, "ext4", nil))
	must(t, s.Host.MountFilesystem(t.Context(), device, dir, "ext4", nil))
	defer func() { must(t, p.Delete(context.Background(), "a")) }()
	defer func() { must(t, s.Host.Unmount(context.Background(), dir)) }()
	for what, err := range map[string]error{
		"Delete": p.Delete(t.Context(), "a"),
		"Detach": p.Detach(t.Context(), "a"),
	} {
		if !errors.Is(err, pool.ErrInUse) {
			t.Errorf("%s of a mounted volume: %v, want ErrInUse", what, err)
		}
	}
	got, err := p.Lookup(t.Context(), "a")
	must(t, err)
	same(t, "volume", v, got)
}

func attach(t *testing.T, s Storage) {
	p := opened(t, s)
	make1(t, p, "a", pool.Unit)
	make1(t, p, "b", pool.Unit)
	device, err := p.Attach(t.Context(), "a")
	must(t, err)
	again, err := p.Attach(t.Context(), "a")
	must(t, err)
	same(t, "attached again", device, again)
	other, err := p.Attach(t.Context(), "b")
	must(t, err)
	if other == device {
		t.Errorf("two volumes have one device %s", device)
	}
	at, err := p.Attached(t.Context(), "a")
	must(t, err)
	same(t, "attached", device, at)
	size, err := s.Host.BlockSize(device)
	must(t, err)
	same(t, "size of the device", pool.Unit, size)
	for range 2 {
		must(t, p.Detach(t.Context(), "a"))
		at, err = p.Attached(t.Context(), "a")
		must(t, err)
		same(t, "attached after Detach", "", at)
	}
	must(t, p.Detach(t.Context(), "b"))
}

func markFormatted(t *testing.T, s Storage) {
	p, err := s.Open(t.Context())
	must(t, err)
	v := make1(t, p, "a", pool.Unit)
	for range 2 {
		must(t, p.MarkFormatted(t.Context(), "a"))
	}
	v.Formatted = true
	p = reopened(t, s, p)
	got, err := p.Lookup(t.Context(), "a")
	must(t, err)
	same(t, "volume", v, got)
	must(t, p.Close())
}

func countNeverGoesBack(t *testing.T, s Storage) {
	p, err := s.Open(t.Context())
	must(t, err)
	last := capacity(t, p).Allocation
	rises := func(what string, n int64) {
		t.Helper()
		if n <= last {
			t.Errorf("%s: the count is %d after %d", what, n, last)
		}
		last = n
	}
	for i := range 3 {
		name := fmt.Sprintf("v%d", i)
		rises("Create", make1(t, p, name, pool.Unit).Allocation)
		must(t, p.Delete(t.Context(), name))
		rises("Delete", capacity(t, p).Allocation)
		p = reopened(t, s, p)
		if n := capacity(t, p).Allocation; n < last {
			t.Errorf("opened again, the count is %d after %d", n, last)
		}
	}
	must(t, p.Close())
}

func onChange(t *testing.T, s Storage) {
	p := opened(t, s)
	var mu sync.Mutex
	calls := 0
	count := func() int { mu.Lock(); defer mu.Unlock(); return calls }
	stop := p.OnChange(func() { mu.Lock(); defer mu.Unlock(); calls++ })
	make1(t, p, "new", pool.Unit)
	if count() == 0 {
		t.Error("Create told nobody")
	}
	before := count()
	_, err := p.Grow(t.Context(), "new", 3*pool.Unit)
	must(t, err)
	if count() == before {
		t.Error("Grow told nobody")
	}
	before = count()
	must(t, p.Delete(t.Context(), "new"))
	if count() == before {
		t.Error("Delete told nobody")
	}
	stop()
	before = count()
	make1(t, p, "later", pool.Unit)
	same(t, "calls after stop", before, count())
}

// concurrent: volumes that together do not fit never all succeed.
func concurrent(t *testing.T, s Storage) {
	p := opened(t, s)
	free := capacity(t, p).Available
	const workers = 8
	size := volume.RoundUp(free/4, pool.Unit)
	var group sync.WaitGroup
	var mu sync.Mutex
	var taken int64
	counts := make(map[int64]string)
	for i := range workers {
		group.Go(func() {
			name := fmt.Sprintf("v%d", i)
			v, err := p.Create(t.Context(), name, pool.Spec{Size: size})
			var exhausted *pool.ExhaustedError
			if errors.As(err, &exhausted) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("creating %s: %v", name, err)
				return
			}
			if other, twice := counts[v.Allocation]; twice {
				t.Errorf("%s and %s share the count %d", name, other, v.Allocation)
			}
			counts[v.Allocation] = name
			taken += v.Size
		})
	}
	group.Wait()
	if taken > free || taken < free/2 {
		t.Errorf("%d bytes were given out of %d", taken, free)
	}
}
