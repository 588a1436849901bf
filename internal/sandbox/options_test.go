package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/volume"
)

func TestOptions(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     Options
		want   string // in the error; "" for none
	}{
		"zero":        {"a control plane alone", Options{}, ""},
		"three":       {"as the README says", Options{Nodes: 3, Zones: 2}, ""},
		"negative":    {"no such number", Options{Nodes: -1}, "nodes -1"},
		"too many":    {"each is three processes", Options{Nodes: 101}, "nodes 101"},
		"more zones":  {"an empty zone would be a surprise", Options{Nodes: 2, Zones: 3}, "zones 3"},
		"small pool":  {"xfs refuses it later and less clearly", Options{Nodes: 1, PoolSize: 100 * volume.MiB}, "pool-size 100 MiB"},
		"small own":   {"a node's own size is judged too", Options{Nodes: 1, PoolSizes: map[string]int64{"node-1": 1}}, "pool-size 1 B"},
		"long folder": {"sockets below it would not work", Options{DataDir: "/var/lib/" + strings.Repeat("x", 60)}, "too long"},
		"root folder": {"it is removed at the end", Options{DataDir: "/var"}, "removed at the end"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := tc.in.withDefaults()
			got := ""
			if err != nil {
				got = err.Error()
			}
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("%s: got %q, want %q in it", tc.reason, got, tc.want)
			}
		})
	}
}

func TestHas(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     Options
		want   []Component
	}{
		"control plane": {"without nodes there is nothing to schedule", Options{}, []Component{ControllerManager}},
		"whole":         {"everything", Options{Nodes: 1}, Components()},
		"skipped":       {"what is left out", Options{Nodes: 1, Skip: []Component{Agents, StockScheduler}}, []Component{ControllerManager, Scheduler, Runtimes, Manifests}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []Component
			for _, c := range Components() {
				if tc.in.has(c) {
					got = append(got, c)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestCleanDataDir(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		link:              dir,
		link + "/new":     dir + "/new",
		dir + "/a/../new": dir + "/new",
	} {
		if got, err := CleanDataDir(in); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q: mounts and processes are found by one spelling", in, got, err, want)
		}
	}
}

func TestNodeList(t *testing.T) {
	l := layout{"/d"}
	want := []Node{
		{Name: "node-1", Zone: "zone-1", Dir: "/d/nodes/node-1"},
		{Name: "node-2", Zone: "zone-2", Dir: "/d/nodes/node-2"},
		{Name: "node-3", Zone: "zone-1", Dir: "/d/nodes/node-3"},
	}
	if diff := cmp.Diff(want, l.nodeList(3, 2)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// The bound on the data folder's length is that of the longest socket.
	n := Node{Name: "node-999", Dir: "/d/nodes/node-999"}
	if got := len(n.DriverSocket()); got > len("/d"+longestSocket) {
		t.Errorf("the driver's socket is longer than longestSocket: %d", got)
	}
}

func TestFreePorts(t *testing.T) {
	ports, err := freePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if p < portFirst || p > portLast || seen[p] {
			t.Errorf("port %d of %v: out of range or twice", p, ports)
		}
		seen[p] = true
	}
}
