package loopfile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/driver/pool/loopfile"
	"github.com/berth-storage/berth/host"
)

var errFault = errors.New("injected fault")

func open(t *testing.T, h host.Host, dir string) *loopfile.Pool {
	t.Helper()
	p, err := loopfile.Open(t.Context(), loopfile.Options{Name: "default", Dir: dir, Host: h})
	must(t, err)
	return p
}

// contents are the files of a pool's folder, without those that are always there.
func contents(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*", ".*", "images/*", "images/.*", "volumes/*", "volumes/.*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		must(t, err)
		for _, f := range found {
			name := strings.TrimPrefix(f, dir+"/")
			if !slices.Contains([]string{"lock", "pool.json", "allocations.json", "images", "volumes"}, name) {
				files = append(files, name)
			}
		}
	}
	return files
}

// TestCrashAnywhere lets each call of each operation fail once, before or after
// its effect, and opens the pool again. What is there then is the volume of
// before or of after, whole, or nothing; and the opposite call leaves nothing.
func TestCrashAnywhere(t *testing.T) {
	const small, large = pool.Unit, 3 * pool.Unit
	create := func(p *loopfile.Pool) error {
		_, err := p.Create(context.Background(), "a", pool.Spec{Size: small, FSType: "ext4"})
		return err
	}
	nothing := func(*loopfile.Pool) error { return nil }
	for name, c := range map[string]struct {
		before, op func(*loopfile.Pool) error
		// sizes that the volume may have afterwards; 0 is no volume
		want []int64
	}{
		"Create": {nothing, create, []int64{0, small}},
		"Grow": {create, func(p *loopfile.Pool) error {
			_, err := p.Grow(context.Background(), "a", large)
			return err
		}, []int64{small, large}},
		"Delete": {create, func(p *loopfile.Pool) error {
			return p.Delete(context.Background(), "a")
		}, []int64{0, small}},
		"Delete attached": {func(p *loopfile.Pool) error {
			if err := create(p); err != nil {
				return err
			}
			_, err := p.Attach(context.Background(), "a")
			return err
		}, func(p *loopfile.Pool) error {
			return p.Delete(context.Background(), "a")
		}, []int64{0, small}},
		"MarkFormatted": {create, func(p *loopfile.Pool) error {
			return p.MarkFormatted(context.Background(), "a")
		}, []int64{small}},
	} {
		for when, arm := range map[string]func(*host.Fake, int){
			"before": func(h *host.Fake, n int) { h.FailAt(n, errFault) },
			"after":  func(h *host.Fake, n int) { h.FailAfter(n, errFault) },
		} {
			t.Run(name+"/"+when, func(t *testing.T) {
				for n := 1; ; n++ {
					h, dir := host.NewFake(), t.TempDir()
					p := open(t, h, dir)
					must(t, c.before(p))
					arm(h, n)
					before := h.Calls()
					err := c.op(p)
					fired := h.Calls()-before >= n
					h.Heal()
					must(t, p.Close())
					afterCrash(t, h, dir, fmt.Sprintf("call %d (%v)", n, err), c.want)
					if !fired {
						must(t, err)
						return
					}
				}
			})
		}
	}
}

func afterCrash(t *testing.T, h host.Host, dir, when string, want []int64) {
	t.Helper()
	p := open(t, h, dir)
	defer func() { must(t, p.Close()) }()
	v, err := p.Lookup(t.Context(), "a")
	if err != nil && !errors.Is(err, pool.ErrNotFound) {
		t.Fatalf("%s: %v", when, err)
	}
	if !slices.Contains(want, v.Size) {
		t.Errorf("%s: the volume has %d bytes, want one of %v", when, v.Size, want)
	}
	var files []string
	if v.Size > 0 {
		files = []string{"images/a.img", "volumes/a.json"}
		info, err := os.Stat(filepath.Join(dir, files[0]))
		must(t, err)
		if info.Size() != v.Size {
			t.Errorf("%s: the image has %d bytes, its record %d", when, info.Size(), v.Size)
		}
	}
	if diff := cmp.Diff(files, contents(t, dir)); diff != "" {
		t.Errorf("%s: files (-want +got):\n%s", when, diff)
	}
	c, err := p.Capacity(t.Context())
	must(t, err)
	if c.Allocation < v.Allocation {
		t.Errorf("%s: the count %d is behind the volume's %d", when, c.Allocation, v.Allocation)
	}
	if err := p.Delete(t.Context(), "a"); err != nil && !errors.Is(err, pool.ErrNotFound) {
		t.Errorf("%s: deleting: %v", when, err)
	}
	if left := contents(t, dir); len(left) > 0 {
		t.Errorf("%s: after Delete %v are left", when, left)
	}
}

// TestOpeningFailsAnywhere: a pool whose opening was cut short opens the next time,
// with the same identity if it had one.
func TestOpeningFailsAnywhere(t *testing.T) {
	for when, arm := range map[string]func(*host.Fake, int){
		"before": func(h *host.Fake, n int) { h.FailAt(n, errFault) },
		"after":  func(h *host.Fake, n int) { h.FailAfter(n, errFault) },
	} {
		t.Run(when, func(t *testing.T) {
			for n := 1; ; n++ {
				h, dir := host.NewFake(), t.TempDir()
				options := loopfile.Options{Name: "default", Dir: dir, Anchor: filepath.Join(t.TempDir(), "anchor.json"), Host: h}
				arm(h, n)
				p, err := loopfile.Open(t.Context(), options)
				fired := h.Calls() >= n
				h.Heal()
				if err == nil {
					must(t, p.Close())
				}
				first, openErr := loopfile.Open(t.Context(), options)
				must(t, openErr)
				uuid := first.UUID()
				must(t, first.Close())
				second, openErr := loopfile.Open(t.Context(), options)
				must(t, openErr)
				if second.UUID() != uuid || uuid == "" {
					t.Errorf("call %d: uuid %q, then %q", n, uuid, second.UUID())
				}
				must(t, second.Close())
				if left := contents(t, dir); len(left) > 0 {
					t.Errorf("call %d: %v are left", n, left)
				}
				if !fired {
					must(t, err)
					return
				}
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	h := host.NewFake()
	for reason, c := range map[string]struct {
		prepare  func(t *testing.T, o *loopfile.Options)
		wantText string
	}{
		"no name":          {func(_ *testing.T, o *loopfile.Options) { o.Name = "" }, "name"},
		"negative reserve": {func(_ *testing.T, o *loopfile.Options) { o.Reserve = -1 }, "reserve"},
		"no folder":        {func(_ *testing.T, o *loopfile.Options) { o.Dir += "/none" }, "mount its disk"},
		"open already": {func(t *testing.T, o *loopfile.Options) {
			p := open(t, h, o.Dir)
			t.Cleanup(func() { must(t, p.Close()) })
		}, "locked"},
		"identity lost": {func(t *testing.T, o *loopfile.Options) {
			p := open(t, h, o.Dir)
			_, err := p.Create(t.Context(), "a", pool.Spec{Size: 1})
			must(t, err)
			must(t, p.Close())
			must(t, os.Remove(filepath.Join(o.Dir, "pool.json")))
		}, "pool.json is missing"},
		"identity of another version": {func(t *testing.T, o *loopfile.Options) {
			must(t, os.WriteFile(filepath.Join(o.Dir, "pool.json"), []byte(`{"version":2,"uuid":"x"}`), 0o600))
		}, "version 2"},
		"disk not mounted": {func(t *testing.T, o *loopfile.Options) {
			o.Anchor = filepath.Join(t.TempDir(), "anchor.json")
			p, err := loopfile.Open(t.Context(), *o)
			must(t, err)
			must(t, p.Close())
			o.Dir = t.TempDir() // the folder below the mount
		}, "mount its disk"},
		"another pool's disk": {func(t *testing.T, o *loopfile.Options) {
			other := *o
			other.Dir, other.Anchor = t.TempDir(), filepath.Join(t.TempDir(), "anchor.json")
			for _, each := range []loopfile.Options{*o, other} {
				p, err := loopfile.Open(t.Context(), each)
				must(t, err)
				must(t, p.Close())
			}
			o.Anchor = other.Anchor
		}, "mount the right disk"},
		"identity unreadable": {func(t *testing.T, o *loopfile.Options) {
			must(t, os.WriteFile(filepath.Join(o.Dir, "pool.json"), []byte(`{`), 0o600))
		}, "pool.json"},
	} {
		t.Run(reason, func(t *testing.T) {
			o := loopfile.Options{Name: "default", Dir: t.TempDir(), Host: h}
			c.prepare(t, &o)
			if _, err := loopfile.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.wantText) {
				t.Errorf("error %v, want one with %q", err, c.wantText)
			}
			if strings.Contains(c.wantText, "disk") && o.Anchor != "" {
				if left := contents(t, o.Dir); len(left) > 0 {
					t.Errorf("the refused folder was changed: %v", left)
				}
			}
		})
	}
}

// TestDamagedIsLeftAlone: what cannot be understood is neither used nor removed,
// and keeps nothing else from working.
func TestDamagedIsLeftAlone(t *testing.T) {
	for reason, damage := range map[string]func(t *testing.T, dir string){
		"a torn record": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "volumes/a.json"), []byte(`{"vers`), 0o600))
		},
		"a record of the future": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "volumes/a.json"), []byte(`{"version":9,"state":"ready"}`), 0o600))
		},
		"an unknown state": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "volumes/a.json"), []byte(`{"version":1,"state":"gone"}`), 0o600))
		},
		"a short image": func(t *testing.T, dir string) {
			must(t, os.Truncate(filepath.Join(dir, "images/a.img"), 1))
		},
		"no record": func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "volumes/a.json")))
		},
	} {
		t.Run(reason, func(t *testing.T) {
			h, dir := host.NewFake(), t.TempDir()
			p := open(t, h, dir)
			_, err := p.Create(t.Context(), "a", pool.Spec{Size: 2 * pool.Unit})
			must(t, err)
			must(t, p.Close())
			damage(t, dir)
			before := contents(t, dir)

			p = open(t, h, dir)
			defer func() { must(t, p.Close()) }()
			var damaged *pool.DamagedError
			if _, err := p.Create(t.Context(), "a", pool.Spec{Size: pool.Unit}); !errors.As(err, &damaged) && reason != "a short image" {
				t.Errorf("creating it anew: %v, want *DamagedError", err)
			}
			_, err = p.Lookup(t.Context(), "a")
			if reason == "no record" && !errors.Is(err, pool.ErrNotFound) || reason != "no record" && !errors.As(err, &damaged) {
				t.Errorf("looking it up: %v", err)
			}
			if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
			other, err := p.Create(t.Context(), "b", pool.Spec{Size: pool.Unit})
			must(t, err)
			all, err := p.List(t.Context())
			must(t, err)
			if diff := cmp.Diff([]pool.Volume{other}, all); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDeleteWithoutImage: an image that somebody removed by hand must not keep
// its volume from being deleted.
func TestDeleteWithoutImage(t *testing.T) {
	h, dir := host.NewFake(), t.TempDir()
	p := open(t, h, dir)
	defer func() { must(t, p.Close()) }()
	_, err := p.Create(t.Context(), "a", pool.Spec{Size: pool.Unit})
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "images/a.img")))
	must(t, p.Delete(t.Context(), "a"))
	if left := contents(t, dir); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// TestOpenFreesStaleDevices: the device of an image that was deleted under it.
func TestOpenFreesStaleDevices(t *testing.T) {
	h, dir := host.NewFake(), t.TempDir()
	p := open(t, h, dir)
	_, err := p.Create(t.Context(), "a", pool.Spec{Size: pool.Unit})
	must(t, err)
	_, err = p.Attach(t.Context(), "a")
	must(t, err)
	must(t, p.Close())
	must(t, os.Remove(filepath.Join(dir, "images/a.img")))
	must(t, open(t, h, dir).Close())
	loops, err := h.LoopsUnder(dir)
	must(t, err)
	if len(loops) > 0 {
		t.Errorf("devices are left: %v", loops)
	}
}

func TestReserveIsKept(t *testing.T) {
	h, dir := host.NewFake(), t.TempDir()
	h.SetCapacity(100 * pool.Unit)
	p, err := loopfile.Open(t.Context(), loopfile.Options{Name: "default", Dir: dir, Reserve: 60 * pool.Unit, Host: h})
	must(t, err)
	defer func() { must(t, p.Close()) }()
	c, err := p.Capacity(t.Context())
	must(t, err)
	if c.Total != 40*pool.Unit || c.Available != 38*pool.Unit {
		t.Errorf("capacity %+v, want 40 units in all and 38 available", c)
	}
}

// TestRealImage: on the machine, a volume's bytes are allocated, zero, and stay
// allocated when its user discards.
func TestRealImage(t *testing.T) {
	h := host.New(host.Options{})
	dir := disk(t, h, "ext4", 256<<20)
	p := open(t, h, dir)
	defer func() { must(t, p.Close()) }()
	_, err := p.Create(t.Context(), "a", pool.Spec{Size: 16 * pool.Unit})
	must(t, err)
	before, err := h.Statfs(dir)
	must(t, err)
	device, err := p.Attach(t.Context(), "a")
	must(t, err)
	defer func() { must(t, p.Delete(context.Background(), "a")) }()
	content, err := os.ReadFile(device)
	must(t, err)
	if int64(len(content)) != 16*pool.Unit || strings.Trim(string(content), "\x00") != "" {
		t.Errorf("a new volume reads as %d bytes, not all of them zero", len(content))
	}
	// mkfs discards the whole device unless it is told not to.
	must(t, h.Format(t.Context(), device, "ext4", nil))
	after, err := h.Statfs(dir)
	must(t, err)
	if after.UsedBytes < before.UsedBytes {
		t.Errorf("the user of the device gave %d bytes back", before.UsedBytes-after.UsedBytes)
	}
}
