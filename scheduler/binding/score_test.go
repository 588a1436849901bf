package binding

import (
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/volume"
)

func TestScore(t *testing.T) {
	cases := map[string]struct {
		reason   string
		delayed  []Claim
		volumes  []*Volume
		segments map[string][]segmentAt
		shape    Shape
		want     int64
	}{
		"empty pool": {
			reason: "a tenth is used", delayed: []Claim{claim("a", "berth", gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 10*gib)}}, want: 90,
		},
		"full pool": {
			reason: "all is used", delayed: []Claim{claim("a", "berth", 10*gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 10*gib)}}, want: 0,
		},
		"pool counted once": {
			reason:   "two claims of a class share one pool's capacity",
			delayed:  []Claim{claim("a", "berth", gib, dynamic), claim("b", "berth", 4*gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 10*gib)}}, want: 50,
		},
		"static": {
			reason: "a volume that fits exactly scores least", delayed: []Claim{claim("a", "local", gib)},
			volumes: []*Volume{pv("x", "local", gib, "n1")}, want: 0,
		},
		"mean of classes": {
			reason:   "each class weighs the same",
			delayed:  []Claim{claim("a", "fast", gib, dynamic), claim("b", "slow", 2*gib, dynamic)},
			segments: map[string][]segmentAt{"fast": {segment("n1", "p", 10*gib)}, "slow": {segment("n1", "q", 4*gib)}}, want: 70,
		},
		"fullest": {
			reason: "a rising shape packs", delayed: []Claim{claim("a", "berth", 4*gib, dynamic)}, shape: Shape{{0, 0}, {100, 10}},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 10*gib)}}, want: 40,
		},
		"bent": {
			reason: "between two points the line is straight", delayed: []Claim{claim("a", "berth", 3*gib, dynamic)}, shape: Shape{{20, 8}, {40, 4}, {90, 2}},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 10*gib)}}, want: 60,
		},
		"before the first point": {
			reason: "the line is level beyond its ends", delayed: []Claim{claim("a", "berth", gib, dynamic)}, shape: Shape{{20, 8}, {40, 4}},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 10*gib)}}, want: 80,
		},
		"after the last point": {
			reason: "the line is level beyond its ends", delayed: []Claim{claim("a", "berth", 9*gib, dynamic)}, shape: Shape{{20, 8}, {40, 4}},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 10*gib)}}, want: 40,
		},
		"one volume size": {
			reason: "an object that publishes no capacity counts as full (upstream crashes)", delayed: []Claim{claim("a", "berth", gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {{"n1", Segment{Pool: "p", Unlimited: true, Bounded: true, MaximumVolumeSize: 9 * gib}}}}, want: 0,
		},
		"huge": {
			reason: "a product beyond 64 bits", delayed: []Claim{claim("a", "berth", 1<<60, dynamic)},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 1<<62)}}, want: 75,
		},
		"not tracked": {reason: "no capacity, no score", delayed: []Claim{claim("a", "berth", gib, func(c *Claim) { c.Class.Provisions = true })}, want: 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			shape := tc.shape
			if shape == nil {
				shape = DefaultShape()
			}
			v := find(NewPod(nil, tc.delayed), node("n1"), world{tc.volumes, tc.segments})
			if got := v.Score(shape); got != tc.want {
				t.Errorf("%s: score %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// node1 is an Occupancy over a plain set.
type node1 map[volume.Key]struct{}

func (n node1) Has(k volume.Key) bool { _, ok := n[k]; return ok }

func (n node1) Used(driver string) (used int64) {
	for k := range n {
		if k.Driver == driver {
			used++
		}
	}
	return used
}

func TestCheckAttach(t *testing.T) {
	list := func(keys ...string) (out []volume.Key) {
		for _, k := range keys {
			driver, handle, _ := strings.Cut(k, "/")
			out = append(out, volume.Key{Driver: driver, Handle: handle})
		}
		return out
	}
	refused := func(details ...string) (out []volume.Refusal) {
		for _, d := range details {
			out = append(out, volume.Refusal{Reason: volume.ReasonAttachLimit, Detail: d})
		}
		return out
	}
	cases := map[string]struct {
		reason          string
		limits          map[string]int64
		present, wanted []volume.Key
		want            []volume.Refusal
	}{
		"no limit":     {reason: "a driver without a limit takes any number", limits: map[string]int64{"e": 0}, wanted: list("d/1", "d/2")},
		"fits":         {reason: "up to the limit", limits: map[string]int64{"d": 2}, present: list("d/1"), wanted: list("d/2")},
		"shared":       {reason: "a volume on the node already adds nothing", limits: map[string]int64{"d": 1}, present: list("d/1"), wanted: list("d/1")},
		"over already": {reason: "a node over its limit still takes what it has", limits: map[string]int64{"d": 1}, present: list("d/1", "d/2"), wanted: list("d/2")},
		"other driver": {reason: "drivers are counted apart", limits: map[string]int64{"d": 1}, present: list("e/1", "e/2"), wanted: list("d/1")},
		"full": {
			reason: "the text counts what is asked, not what the node has", limits: map[string]int64{"d": 2}, present: list("d/1"), wanted: list("d/2", "d/3"),
			want: refused("driver d, 2 more asked"),
		},
		"part is there": {
			reason: "only what is new is asked", limits: map[string]int64{"d": 2}, present: list("d/1", "d/4"), wanted: list("d/1", "d/2"),
			want: refused("driver d, 1 more asked"),
		},
		"zero": {
			reason: "a limit of zero is not unlimited", limits: map[string]int64{"d": 0}, wanted: list("d/2"),
			want: refused("driver d, 1 more asked"),
		},
		"two drivers": {
			reason: "each driver that is full is named, in one order", limits: map[string]int64{"d": 0, "e": 1}, wanted: list("e/1", "d/2", "e/3"),
			want: refused("driver d, 1 more asked", "driver e, 2 more asked"),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			there := node1{}
			for _, k := range tc.present {
				there[k] = struct{}{}
			}
			limit := func(driver string) (int64, bool) { n, ok := tc.limits[driver]; return n, ok }
			if diff := gocmp.Diff(tc.want, CheckAttach(tc.wanted, limit, there)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}
