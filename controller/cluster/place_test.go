package cluster

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func offerOf(node string, capacity int64) offer {
	return offer{key: node, version: "1", class: "now", pool: "pool-" + node, allocation: 5, capacity: capacity, maximum: math.MaxInt64, nodes: []string{node}}
}

func wantOf(name string, bytes int64) want {
	pvc := makeClaim(name, bytes)
	return want{claim: claim{uid: pvc.UID, name: types.NamespacedName{Namespace: "default", Name: name}, class: "now", bytes: bytes, object: pvc}, class: class{name: "now", immediate: true}}
}

func TestPlace(t *testing.T) {
	ready := func(name string) node {
		return node{name: name, labels: map[string]string{"zone": "z-" + name}, registered: true}
	}
	zone := func(values ...string) []corev1.TopologySelectorTerm {
		return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: values}}}}
	}
	cases := map[string]struct {
		reason  string
		nodes   []node
		offers  []offer
		volumes []made
		holds   []hold
		want    func(*want)
		wantOn  string
		wantWhy string
	}{
		"most free": {
			reason: "the node with the most free space takes the claim",
			nodes:  []node{ready("a"), ready("b")}, offers: []offer{offerOf("a", 5*gi), offerOf("b", 9*gi)}, wantOn: "b",
		},
		"after holds": {
			reason: "space promised to others is not free",
			nodes:  []node{ready("a"), ready("b")}, offers: []offer{offerOf("a", 5*gi), offerOf("b", 9*gi)},
			holds: []hold{{claim: "x", class: "now", node: "b", bytes: 5 * gi}}, wantOn: "a",
		},
		"held and made": {
			reason: "a claim with a volume is counted by the volume's number, not by its hold",
			nodes:  []node{ready("a"), ready("b")}, offers: []offer{offerOf("a", 5*gi), offerOf("b", 9*gi)},
			holds:   []hold{{claim: "x", class: "now", node: "b", bytes: 5 * gi}},
			volumes: []made{{claim: "x", pool: "pool-b", allocation: 5, bytes: 5 * gi}}, wantOn: "b",
		},
		"newer volume": {
			reason: "a volume numbered above the object is not in its capacity yet",
			nodes:  []node{ready("a"), ready("b")}, offers: []offer{offerOf("a", 5*gi), offerOf("b", 9*gi)},
			volumes: []made{{claim: "x", pool: "pool-b", allocation: 6, bytes: 5 * gi}}, wantOn: "a",
		},
		"other class, same pool": {
			reason: "classes on one pool share its bytes",
			nodes:  []node{ready("a"), ready("b")},
			offers: []offer{offerOf("a", 5*gi), offerOf("b", 9*gi), func() offer { o := offerOf("b", 9*gi); o.key, o.class = "b2", "later"; return o }()},
			holds:  []hold{{claim: "x", class: "later", node: "b", bytes: 5 * gi}}, wantOn: "a",
		},
		"full to the byte": {
			reason: "exactly enough is enough",
			nodes:  []node{ready("a")}, offers: []offer{offerOf("a", gi)}, wantOn: "a",
		},
		"gave it back": {
			reason: "a node that could not serve the claim is not asked again before its capacity changes",
			nodes:  []node{ready("a"), ready("b")}, offers: []offer{offerOf("a", 5*gi), offerOf("b", 9*gi)},
			want: func(w *want) { w.tried = map[string]string{"b": "b@1 "} }, wantOn: "a",
		},
		"changed since": {
			reason: "with another capacity the node is asked again",
			nodes:  []node{ready("a"), ready("b")}, offers: []offer{offerOf("a", 5*gi), offerOf("b", 9*gi)},
			want: func(w *want) { w.tried = map[string]string{"b": "b@0 "} }, wantOn: "b",
		},
		"allowed topologies": {
			reason: "only nodes of the class's topologies take part",
			nodes:  []node{ready("a"), ready("b")}, offers: []offer{offerOf("a", 5*gi), offerOf("b", 9*gi)},
			want: func(w *want) { w.class.topology = zone("z-a", "z-c") }, wantOn: "a",
		},
		"no node": {
			reason: "an empty cluster is said", wantWhy: "no node has a place for 1 GiB of class now:\nthe cluster has no node",
		},
		"every cause": {
			reason: "each cause has one line, whatever the number of nodes",
			nodes: []node{
				{name: "deleting", barred: causeDeleting},
				{name: "cordoned", barred: causeUnschedulable},
				{name: "down", barred: causeNotReady},
				{name: "down2", barred: causeNotReady},
				ready("elsewhere"),
				{name: "bare", labels: map[string]string{"zone": "z"}},
				{name: "silent", labels: map[string]string{"zone": "z"}, registered: true},
				{name: "full", labels: map[string]string{"zone": "z"}, registered: true},
				{name: "split", labels: map[string]string{"zone": "z"}, registered: true},
				{name: "back", labels: map[string]string{"zone": "z"}, registered: true},
			},
			offers: []offer{offerOf("full", 512<<20), func() offer { o := offerOf("split", 9*gi); o.maximum = 600 << 20; return o }(), offerOf("back", 9*gi)},
			want: func(w *want) {
				w.class.topology, w.tried = zone("z"), map[string]string{"back": "back@1 "}
			},
			wantWhy: strings.Join([]string{
				"no node has a place for 1 GiB of class now:",
				"1 node(s) are being deleted",
				"1 node(s) are unschedulable",
				"2 node(s) are not ready",
				"1 node(s) lie outside the allowedTopologies of the class",
				"1 node(s) have no driver: CSI driver is not installed on the node",
				"1 node(s) publish no capacity for the class",
				"2 node(s) did not have enough free storage: 1 GiB asked, 600 MiB is the most that any has",
				"1 node(s) gave the claim back, and their capacity has not changed since",
			}, "\n"),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := wantOf("data", gi)
			if tc.want != nil {
				tc.want(&w)
			}
			got := place(newRoom(tc.offers, tc.volumes, tc.holds), tc.nodes, w)
			if got.node != tc.wantOn {
				t.Errorf("%s: placed on %q, want %q: %s", tc.reason, got.node, tc.wantOn, got.text())
			}
			if tc.wantWhy != "" {
				if diff := cmp.Diff(tc.wantWhy, got.text()); diff != "" {
					t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
				}
			}
		})
	}
}

// TestTurns: neighbours of a StatefulSet go to different nodes even where each
// is decided before anything is known of the others.
func TestTurns(t *testing.T) {
	var nodes []node
	var offers []offer
	for _, n := range []string{"a", "b", "c"} {
		nodes = append(nodes, node{name: n, registered: true})
		offers = append(offers, offerOf(n, 10*gi))
	}
	on := make(map[string]int)
	for _, claim := range []string{"data-web-0", "data-web-1", "data-web-2"} {
		on[place(newRoom(offers, nil, nil), nodes, wantOf(claim, gi)).node]++
	}
	if diff := cmp.Diff(map[string]int{"a": 1, "b": 1, "c": 1}, on); diff != "" {
		t.Error(diff)
	}
}

// TestHugeClaims: sums of requests do not wrap around.
func TestHugeClaims(t *testing.T) {
	holds := []hold{{claim: "x", class: "now", node: "a", bytes: math.MaxInt64}, {claim: "y", class: "now", node: "a", bytes: math.MaxInt64}}
	r := newRoom([]offer{offerOf("a", 9*gi)}, []made{{claim: "z", pool: "pool-a", allocation: 9, bytes: math.MaxInt64}}, holds)
	if free := r.free(offerOf("a", 9*gi)); free >= 0 {
		t.Errorf("%d bytes are free", free)
	}
}
