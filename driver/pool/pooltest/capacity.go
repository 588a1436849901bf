package pooltest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/volume"
)

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
			if _, ok := errors.AsType[*pool.ExhaustedError](err); ok {
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
