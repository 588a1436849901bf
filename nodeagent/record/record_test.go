package record

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

var key = volume.Key{Driver: "d.example", Handle: "h1"}

func open(t *testing.T, dir, boot string) (*Store, []Aside) {
	t.Helper()
	s, asides, err := Open(dir, boot)
	if err != nil {
		t.Fatal(err)
	}
	return s, asides
}

// golden is what testdata/v1-mounted.json says.
func golden() plan.Record {
	return plan.Record{
		Key: key, PV: "pv1",
		Stage:   plan.Effect{State: plan.Done, Path: "/r/staging", SawMount: true},
		Grow:    plan.Effect{State: plan.Done, Path: "/r/target"},
		GrownTo: 2 << 30,
		Pods: map[string]plan.PodRecord{
			"uid-1": {
				Pod:     plan.Pod{Namespace: "default", Name: "web-0", UID: "uid-1"},
				Publish: plan.Effect{State: plan.Done, Path: "/r/target", SawMount: true}, Custody: plan.HandedOut,
			},
			"uid-2": {
				Pod: plan.Pod{Namespace: "default", Name: "web-1", UID: "uid-2"}, ReadOnly: true,
				Publish: plan.Effect{State: plan.Uncertain, Path: "/r/target2"},
			},
		},
	}
}

// named is what testdata/v1-volume-name.json says: publications name the pod's
// volume since then.
func named() plan.Record {
	return plan.Record{Key: key, PV: "pv1", Pods: map[string]plan.PodRecord{
		"uid-1": {
			Pod: plan.Pod{Namespace: "default", Name: "web-0", UID: "uid-1"}, Volume: "data",
			Publish: plan.Effect{State: plan.Done, Path: "/r/target", SawMount: true}, Custody: plan.HandedOut,
		},
	}}
}

func TestOldFilesLoad(t *testing.T) {
	for file, want := range map[string]plan.Record{"v1-mounted.json": golden(), "v1-volume-name.json": named()} {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, fileName(key)), data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, asides := open(t, dir, "boot-a")
			if diff := cmp.Diff(want, s.Get(key)); diff != "" || len(asides) != 0 {
				t.Errorf("put aside: %v (-want +got):\n%s", asides, diff)
			}
			// What is loaded is written back whole.
			if err := s.Update(key, func(r *plan.Record) error { r.PV += "x"; return nil }); err != nil {
				t.Fatal(err)
			}
			s, _ = open(t, dir, "boot-a")
			want.PV += "x"
			if diff := cmp.Diff(want, s.Get(key)); diff != "" {
				t.Errorf("written back (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRebootLeavesNothingCertain(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, "boot-a")
	if err := s.Update(key, func(r *plan.Record) error { *r = golden(); return nil }); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, dir, "boot-b")
	got := s.Get(key)
	if got.Stage.State != plan.Uncertain || got.Pods["uid-1"].Publish.State != plan.Uncertain {
		t.Errorf("stage %v, publication %v; want both uncertain", got.Stage, got.Pods["uid-1"].Publish)
	}
	if got.Pods["uid-1"].Custody != plan.HandedOut {
		t.Error("only the runtime may say that the processes are gone")
	}
}

func TestUpdateIsDurableAndReadsBack(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, "b")
	if err := s.Update(key, func(r *plan.Record) error { *r = golden(); return nil }); err != nil {
		t.Fatal(err)
	}
	cancelled := errors.New("no")
	if err := s.Update(key, func(r *plan.Record) error { delete(r.Pods, "uid-1"); return cancelled }); !errors.Is(err, cancelled) {
		t.Errorf("error %v, want the change's own", err)
	}
	again, _ := open(t, dir, "b")
	for _, store := range []*Store{s, again} {
		if diff := cmp.Diff(golden(), store.Get(key)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if got := s.Keys(); !slices.Equal(got, []volume.Key{key}) {
		t.Errorf("keys %v", got)
	}
	if got := s.Holding("uid-2"); !slices.Equal(got, []volume.Key{key}) {
		t.Errorf("volumes of the pod: %v", got)
	}
	if got := s.Holding("uid-3"); len(got) != 0 {
		t.Errorf("volumes of a pod without any: %v", got)
	}
	if err := s.Update(key, func(r *plan.Record) error {
		r.Stage.BecomeAbsent()
		clear(r.Pods)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestWriteThatFailsChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, "b")
	if err := s.Update(key, func(r *plan.Record) error { *r = golden(); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(key, func(r *plan.Record) error { r.GrownTo = 1; return nil }); err == nil {
		t.Error("a write into nowhere succeeded")
	}
	if diff := cmp.Diff(golden(), s.Get(key)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnreadableFilesAreKeptAside(t *testing.T) {
	whole, err := encode(golden(), "b")
	if err != nil {
		t.Fatal(err)
	}
	replace := func(from, to string) []byte { return []byte(strings.Replace(string(whole), from, to, 1)) }
	cases := map[string]struct {
		reason    string
		data      []byte
		wantError string
	}{
		"Empty":        {"power loss on a file system without ordering", nil, "not a record"},
		"Torn":         {"half a write", whole[:len(whole)/2], "not a record"},
		"Trailing":     {"two writes in one file", append(slices.Clone(whole), whole...), "after its end"},
		"Newer":        {"it may hold effects that this agent cannot undo", replace(`"version": 1`, `"version": 99`), "version 99"},
		"NoVersion":    {"another program's file", []byte(`{"a":1}`), "version 0"},
		"NoHandle":     {"nothing to call the driver with", replace(`"handle": "h1"`, `"handle": ""`), "no volume handle"},
		"UnknownState": {"a state is never guessed", replace(`"uncertain"`, `"perhaps"`), "perhaps"},
		"NoPath":       {"an effect without a place cannot be undone", replace(`"path": "/r/staging",`, ``), "no path"},
		"Alien":        {"a copy under another name would be one volume twice", replace(`"h1"`, `"h2"`), "is named"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, fileName(key))
			if err := os.WriteFile(path, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, asides := open(t, dir, "b")
			if len(s.Keys()) != 0 {
				t.Errorf("%s: loaded %v", c.reason, s.Keys())
			}
			if len(asides) != 1 || !strings.Contains(asides[0].Err.Error(), c.wantError) {
				t.Fatalf("%s: put aside %v, want %q", c.reason, asides, c.wantError)
			}
			kept, err := os.ReadFile(asides[0].Path)
			if err != nil || string(kept) != string(c.data) {
				t.Errorf("%s: the content was not kept: %v", c.reason, err)
			}
		})
	}
}

func TestUnfinishedWritesAreSweptAway(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{filepath.Base(TempName("a.json")), "README"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, asides := open(t, dir, "b")
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "README" || len(asides) != 0 {
		t.Errorf("left %v, aside %v, %v", left, asides, err)
	}
}

func TestConcurrentUpdatesOfOneVolume(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, "b")
	const n = 20
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := s.Update(key, func(r *plan.Record) error {
				r.Stage.BecomeUncertain("/s")
				r.GrownTo++
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	again, _ := open(t, dir, "b")
	if got := again.Get(key).GrownTo; got != n {
		t.Errorf("%d of %d updates on disk", got, n)
	}
}

func FuzzDecode(f *testing.F) {
	whole, err := encode(golden(), "b")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte(`{"version":1,"driver":"d","handle":"h","stage":{"state":"absent"},"grow":{"state":"absent"}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, boot, err := decode(data)
		if err != nil {
			return
		}
		out, err := encode(r, boot)
		if err != nil {
			t.Fatal(err)
		}
		again, bootAgain, err := decode(out)
		if err != nil || bootAgain != boot {
			t.Fatalf("what was written is not read: %v", err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Error(diff)
		}
	})
}
