package cache

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// at is the topology of one node.
func at(node string) *place {
	return newPlaces(newAtlas()).ofTopology(&metav1.LabelSelector{MatchLabels: map[string]string{"host": node}})
}

func nodeLabels(node string) map[string]string { return map[string]string{"host": node} }

func capacityOf(class, node, pool string, n, bytes int64, version string) capacityFacts {
	f := capacityFacts{key: "ns/" + class + "-" + node, class: class, place: at(node), pool: pool, allocation: n, capacity: bytes, version: version}
	if n == volume.Unnumbered {
		f.pool = "object " + f.key
	}
	return f
}

// offer gives the ledger an object, of a place of its own.
func offer(l *ledger, f capacityFacts) {
	of := f.place
	f.place = l.places.intern(of.id, func() *place {
		p := *of
		p.refs, p.spots = 0, slices.Clone(of.spots)
		return &p
	})
	l.setCapacity(f)
}

// free is what the ledger says a class has on a node: object by object.
func free(l *ledger, class, node string) []int64 {
	var out []int64
	for _, s := range (room{l.segments.of(class)}).Segments(nil, &binding.Node{Name: node, Labels: nodeLabels(node)}) {
		out = append(out, s.Available)
	}
	return out
}

func selected(class, node string) claimFacts {
	return claimFacts{uid: "c", class: class, selected: node, bytes: 30, version: "10"}
}

func TestLedger(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	numbered := capacityOf("A", "n1", "P", 5, 100, "1")
	unselected := claimFacts{uid: "c", class: "A", bytes: 30, version: "1"}
	cases := map[string]struct {
		reason string
		steps  func(l *ledger)
		want   []int64
	}{
		"nothing held": {reason: "the published capacity", steps: func(l *ledger) {}, want: []int64{100}},
		"selected": {
			reason: "a selected claim without a volume is held, also after a restart",
			steps:  func(l *ledger) { l.setClaim(selected("A", "n1")) }, want: []int64{70},
		},
		"selected before the node is known": {
			reason: "a hold finds its pool when its node appears",
			steps: func(l *ledger) {
				l.setClaim(selected("A", "n2"))
				offer(l, capacityOf("A", "n2", "P", 5, 100, "1"))
				l.setNode("n2", nodeLabels("n2"))
			}, want: []int64{70},
		},
		"elsewhere": {
			reason: "a hold on another node's pool is not felt here",
			steps:  func(l *ledger) { l.setNode("n2", nodeLabels("n2")); l.setClaim(selected("A", "n2")) }, want: []int64{100},
		},
		"shared pool": {
			reason: "a claim of another class on the same pool is held here",
			steps: func(l *ledger) {
				offer(l, capacityOf("B", "n1", "P", 5, 100, "1"))
				l.setClaim(selected("B", "n1"))
			}, want: []int64{70},
		},
		"reserved": {
			reason: "a hold starts at Reserve",
			steps:  func(l *ledger) { l.reserve(unselected, "n1", "pod") }, want: []int64{70},
		},
		"reserved twice": {
			reason: "reserving again holds once",
			steps:  func(l *ledger) { l.reserve(unselected, "n1", "pod"); l.reserve(unselected, "n1", "pod") }, want: []int64{70},
		},
		"released": {
			reason: "Unreserve gives the bytes back",
			steps:  func(l *ledger) { l.reserve(unselected, "n1", "pod"); l.release("c", "pod", start) }, want: []int64{100},
		},
		"released by one of two": {
			reason: "two pods may share a claim",
			steps: func(l *ledger) {
				l.reserve(unselected, "n1", "pod")
				l.reserve(unselected, "n1", "other")
				l.release("c", "pod", start)
			}, want: []int64{70},
		},
		"written, released": {
			reason: "the API says selected, so the bytes stay held before the informer knows",
			steps: func(l *ledger) {
				l.reserve(unselected, "n1", "pod")
				l.written("c", "9")
				l.release("c", "pod", start)
				l.setClaim(claimFacts{uid: "c", class: "A", bytes: 30, version: "8"})
			}, want: []int64{70},
		},
		"written, given back": {
			reason: "a newer claim without selection is the provisioner's answer",
			steps: func(l *ledger) {
				l.reserve(unselected, "n1", "pod")
				l.written("c", "9")
				l.setClaim(claimFacts{uid: "c", class: "A", bytes: 30, version: "11"})
			}, want: []int64{100},
		},
		"uncertain": {
			reason: "a write without an answer is held through the grace",
			steps: func(l *ledger) {
				l.reserve(unselected, "n1", "pod")
				l.uncertain("c")
				l.release("c", "pod", start)
				l.expire(start.Add(l.grace - time.Second))
			}, want: []int64{70},
		},
		"uncertain, expired": {
			reason: "and not for ever",
			steps: func(l *ledger) {
				l.reserve(unselected, "n1", "pod")
				l.uncertain("c")
				l.release("c", "pod", start)
				l.expire(start.Add(l.grace))
			}, want: []int64{100},
		},
		"uncertain, happened": {
			reason: "the informer's selection outlives the grace",
			steps: func(l *ledger) {
				l.reserve(unselected, "n1", "pod")
				l.uncertain("c")
				l.release("c", "pod", start)
				l.setClaim(selected("A", "n1"))
				l.expire(start.Add(l.grace))
			}, want: []int64{70},
		},
		"unrelated change": {
			reason: "a label on the claim does not end its reservation",
			steps:  func(l *ledger) { l.reserve(unselected, "n1", "pod"); l.setClaim(unselected) }, want: []int64{70},
		},
		"selection removed": {
			reason: "the provisioner gave the node back",
			steps:  func(l *ledger) { l.setClaim(selected("A", "n1")); l.setClaim(unselected) }, want: []int64{100},
		},
		"claim deleted": {
			reason: "no claim, no hold",
			steps:  func(l *ledger) { l.setClaim(selected("A", "n1")); l.deleteClaim("c") }, want: []int64{100},
		},
		"volume not yet published": {
			reason: "the object does not contain allocation 6",
			steps: func(l *ledger) {
				l.setClaim(selected("A", "n1"))
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", pool: "P", allocation: 6, bytes: 32})
			}, want: []int64{68},
		},
		"volume published": {
			reason: "the object contains allocation 5",
			steps: func(l *ledger) {
				l.setClaim(selected("A", "n1"))
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", pool: "P", allocation: 5, bytes: 32})
			}, want: []int64{100},
		},
		"volume after restart": {
			reason: "a volume newer than the object is held without its claim",
			steps: func(l *ledger) {
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", pool: "P", allocation: 6, bytes: 32})
			}, want: []int64{68},
		},
		"object passes": {
			reason: "the next object contains it",
			steps: func(l *ledger) {
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", pool: "P", allocation: 6, bytes: 32})
				offer(l, capacityOf("A", "n1", "P", 6, 68, "2"))
			}, want: []int64{68},
		},
		"volume deleted": {
			reason: "what was never published was free",
			steps: func(l *ledger) {
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", pool: "P", allocation: 6, bytes: 32})
				l.deleteVolume("pv")
			}, want: []int64{100},
		},
		"bound before its volume is seen": {
			reason: "the claim's event came first: still held",
			steps: func(l *ledger) {
				c := selected("A", "n1")
				c.volumeName = "pv"
				l.setClaim(c)
			}, want: []int64{70},
		},
		"volume gone, claim still names it": {
			reason: "nothing is awaited for a deleted volume",
			steps: func(l *ledger) {
				c := selected("A", "n1")
				l.setClaim(c)
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", pool: "P", allocation: 5, bytes: 30})
				l.deleteVolume("pv")
				c.volumeName = "pv"
				l.setClaim(c)
			}, want: []int64{100},
		},
		"claim lost": {
			reason: "the PV controller says that the volume is gone",
			steps: func(l *ledger) {
				c := selected("A", "n1")
				c.volumeName, c.lost = "pv", true
				l.setClaim(c)
			}, want: []int64{100},
		},
		"object deleted and back": {
			reason: "holds find the object again",
			steps: func(l *ledger) {
				l.setClaim(selected("A", "n1"))
				l.deleteCapacity(numbered.key)
				offer(l, numbered)
			}, want: []int64{70},
		},
		"node gone": {
			reason: "a hold outlives its node's object, for pools that other nodes reach",
			steps:  func(l *ledger) { l.setClaim(selected("A", "n1")); l.deleteNode("n1") }, want: []int64{70},
		},
		"no number": {
			reason: "a volume without number stays held while the object is the same",
			steps: func(l *ledger) {
				offer(l, capacityOf("A", "n1", "", volume.Unnumbered, 100, "1"))
				l.setClaim(selected("A", "n1"))
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", allocation: volume.Unnumbered, bytes: 30})
			}, want: []int64{70},
		},
		"no number, newer object": {
			reason: "a newer object is taken to contain it",
			steps: func(l *ledger) {
				offer(l, capacityOf("A", "n1", "", volume.Unnumbered, 100, "1"))
				l.setClaim(selected("A", "n1"))
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", allocation: volume.Unnumbered, bytes: 30})
				offer(l, capacityOf("A", "n1", "", volume.Unnumbered, 71, "2"))
			}, want: []int64{71},
		},
		"no number, no newer object": {
			reason: "and the wait is bounded",
			steps: func(l *ledger) {
				offer(l, capacityOf("A", "n1", "", volume.Unnumbered, 100, "1"))
				l.setClaim(selected("A", "n1"))
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", allocation: volume.Unnumbered, bytes: 30})
				l.schedule(start)
				l.expire(start.Add(l.grace))
			}, want: []int64{100},
		},
		"no number, old volume": {
			reason: "after a restart the volumes of other drivers hold nothing",
			steps: func(l *ledger) {
				offer(l, capacityOf("A", "n1", "", volume.Unnumbered, 100, "1"))
				l.setVolume(volumeFacts{name: "pv", claimUID: "c", allocation: volume.Unnumbered, bytes: 30})
				l.setClaim(selected("A", "n1"))
			}, want: []int64{100},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := newLedger(time.Minute, newPlaces(newAtlas()))
			l.setNode("n1", nodeLabels("n1"))
			offer(l, numbered)
			tc.steps(l)
			node := "n1"
			if _, moved := l.objects["ns/A-n2"]; moved {
				node = "n2"
			}
			if diff := cmp.Diff(tc.want, free(l, "A", node)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			checkClean(t, l)
		})
	}
}

// checkClean asserts that the ledger keeps nothing that no object accounts for.
func checkClean(t *testing.T, l *ledger) {
	t.Helper()
	for id, p := range l.pools {
		if p.unused() {
			t.Errorf("pool %s is kept without use", id)
		}
		for uid := range p.pending {
			if h := l.holds[uid]; h == nil || !slices.Contains(h.charged, id) {
				t.Errorf("pool %s counts %s, which does not know it", id, uid)
			}
		}
	}
	for uid, h := range l.holds {
		if h.empty() {
			t.Errorf("hold %s is kept empty", uid)
		}
	}
	for key, set := range l.byNode {
		for uid := range set {
			if l.holds[uid] == nil {
				t.Errorf("node %s lists %s, which is gone", key, uid)
			}
		}
	}
	for key, set := range l.byClass {
		for uid := range set {
			if l.holds[uid] == nil {
				t.Errorf("class %s lists %s, which is gone", key, uid)
			}
		}
	}
}

// TestHoldsDoNotOverflow: claims of any size, which anybody may make, never turn
// into free space.
func TestHoldsDoNotOverflow(t *testing.T) {
	const most = 1<<63 - 1
	cases := map[string]struct {
		reason string
		sizes  []int64
	}{
		"back to what is published": {"two of 8 EiB are 2 bytes short of nothing", []int64{most, most}},
		"above what is published":   {"more of them would be terabytes", []int64{most, most, most, most}},
		"below zero":                {"no claim asks for less than nothing", []int64{-most}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := newPool()
			for i, bytes := range tc.sizes {
				p.pending[strconv.Itoa(i)] = bytes
				p.addVolume(volumeFacts{name: strconv.Itoa(i), allocation: 2, bytes: bytes})
			}
			if s := p.segment(capacityFacts{key: "o", pool: "p", capacity: volume.GiB, allocation: 1}); s.Available > volume.GiB || tc.sizes[0] > 0 && s.Available > 0 {
				t.Errorf("%s: %d bytes are free", tc.reason, s.Available)
			}
		})
	}
}
