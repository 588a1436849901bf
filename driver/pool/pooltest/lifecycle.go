package pooltest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-storage/berth/driver/pool"
)

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
