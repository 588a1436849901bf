package binding

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-storage/berth/volume"
)

// on is the place of one node by its name label.
type on string

func (p on) Matches(n *Node) bool { return n.Labels["host"] == string(p) }
func (p on) String() string       { return "host=" + string(p) }

// world is a View over plain slices: every lookup is a scan.
type world struct {
	volumes  []*Volume
	segments map[string][]segmentAt
}

type segmentAt struct {
	host string
	Segment
}

// reaches is where a volume can be used, for claims that are not bound.
func reaches(v *Volume, n *Node) bool { return v.Place == nil || v.Place.Matches(n) }

// fits is every rule of a match but place and selector.
func fits(c *Claim, v *Volume) bool {
	for _, mode := range c.AccessModes {
		if !slices.Contains(v.AccessModes, mode) {
			return false
		}
	}
	return c.Admits(v)
}

func (w world) Shelf(c *Claim) Shelf {
	var s shelf
	for _, v := range w.volumes {
		if fits(c, v) {
			s = append(s, v)
		}
	}
	slices.SortFunc(s, func(a, b *Volume) int {
		return cmp.Or(cmp.Compare(a.Capacity, b.Capacity), strings.Compare(a.Name, b.Name))
	})
	return s
}

type shelf []*Volume

func (s shelf) Ascend(n *Node, capacity int64, take Taker) {
	for _, v := range s {
		if reaches(v, n) && v.Capacity >= capacity && !take.Take(v) {
			return
		}
	}
}

func (w world) Room(class string) Room { return room(w.segments[class]) }

type room []segmentAt

func (r room) Segments(buf []*Segment, n *Node) []*Segment {
	for i := range r {
		if r[i].host == n.Labels["host"] {
			buf = append(buf, &r[i].Segment)
		}
	}
	return buf
}

func (w world) Node(n *corev1.Node) Node { return Node{Name: n.Name, Labels: n.Labels} }

func (w world) MostAvailable(class *Class) (int64, bool) {
	most := int64(math.MinInt64)
	for _, s := range w.segments[class.Name] {
		most = max(most, s.Available)
	}
	return most, len(w.segments[class.Name]) > 0
}

// find answers for one pod on one node.
func find(pod *Pod, n Node, w world) Verdict { return Find(NewQuestion(pod, w), n) }

func node(name string) Node { return Node{Name: name, Labels: map[string]string{"host": name}} }

const gib = volume.GiB

func pv(name, class string, size int64, host string) *Volume {
	v := &Volume{Name: name, UID: "uid-" + name, Class: class, Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}
	if host != "" {
		v.Place = on(host)
	}
	return v
}

func claim(name, class string, size int64, change ...func(*Claim)) Claim {
	c := Claim{
		Key: "default/" + name, UID: "uid-" + name, Class: Class{Name: class}, Request: size, HasRequest: true,
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func dynamic(c *Claim) { c.Class.Provisions, c.Class.TracksCapacity = true, true }

func segment(host, pool string, available int64) segmentAt {
	return segmentAt{host, Segment{Pool: pool, Available: available, Capacity: available}}
}

func bound(v *Volume) Claim {
	return claim("a", "", gib, func(c *Claim) { c.Volume, c.VolumeName = v, "pv-a" })
}

// answer is a verdict in words.
func answer(v Verdict) []string {
	var out []string
	for _, b := range v.Bindings {
		out = append(out, b.Claim.Key+" on "+b.Volume.Name)
	}
	for _, p := range v.Provisions {
		text := p.Claim.Key + " provisioned"
		if p.Segment != nil {
			text += " in " + p.Segment.Pool
		}
		out = append(out, text)
	}
	slices.Sort(out)
	for _, r := range v.Refusals {
		out = append(out, string(r.Reason)+": "+r.Detail)
	}
	return out
}

func TestFind(t *testing.T) {
	blue := labels.SelectorFromSet(labels.Set{"color": "blue"})
	blueVolume := pv("blue", "local", 5*gib, "n1")
	blueVolume.Labels = map[string]string{"color": "blue"}
	block := pv("block", "local", 5*gib, "n1")
	block.Block = true
	gold := pv("gold", "local", 5*gib, "n1")
	gold.AttributesClass = "gold"
	zone1 := func(c *Claim) {
		dynamic(c)
		c.Class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"z1"}}}}}
	}
	cases := map[string]struct {
		reason         string
		bound, delayed []Claim
		volumes        []*Volume
		segments       map[string][]segmentAt
		want           []string
	}{
		"bound here": {
			reason: "the volume is where the node is",
			bound:  []Claim{bound(pv("pv-a", "", gib, "n1"))},
		},
		"bound everywhere": {
			reason: "a volume without affinity reaches every node",
			bound:  []Claim{bound(pv("pv-a", "", gib, ""))},
		},
		"bound elsewhere": {
			reason: "the detail names the volume and its place, not the node",
			bound:  []Claim{bound(pv("pv-a", "", gib, "n2"))},
			want:   []string{"NodeAffinity: claim default/a is bound to pv-a, at host=n2"},
		},
		"bound to nothing": {
			reason: "a missing volume refuses every node",
			bound:  []Claim{bound(nil)},
			want:   []string{"VolumeMissing: claim default/a is bound to pv-a"},
		},
		"both causes": {
			reason:  "delayed claims are judged beside bound ones",
			bound:   []Claim{bound(pv("pv-a", "", gib, "n2"))},
			delayed: []Claim{claim("b", "local", gib)},
			want: []string{
				"NodeAffinity: claim default/a is bound to pv-a, at host=n2",
				"NoMatchingVolume: claim default/b asks 1 GiB",
			},
		},
		"smallest fit": {
			reason:  "the smallest volume that is large enough, ties by name",
			delayed: []Claim{claim("a", "local", 2*gib)},
			volumes: []*Volume{pv("big", "local", 9*gib, "n1"), pv("z", "local", 3*gib, "n1"), pv("y", "local", 3*gib, "n1"), pv("tiny", "local", gib, "n1")},
			want:    []string{"default/a on y"},
		},
		"other class": {
			reason:  "a volume of another class is never taken",
			delayed: []Claim{claim("a", "local", gib)}, volumes: []*Volume{pv("x", "other", gib, "n1")},
			want: []string{"NoMatchingVolume: claim default/a asks 1 GiB"},
		},
		"selector": {
			reason:  "the claim's selector holds",
			delayed: []Claim{claim("a", "local", gib, func(c *Claim) { c.Selector = blue })},
			volumes: []*Volume{pv("plain", "local", gib, "n1"), blueVolume}, want: []string{"default/a on blue"},
		},
		"volume mode": {
			reason:  "a block claim takes a block volume alone",
			delayed: []Claim{claim("a", "local", gib, func(c *Claim) { c.Block = true })},
			volumes: []*Volume{pv("plain", "local", gib, "n1"), block}, want: []string{"default/a on block"},
		},
		"attributes class": {
			reason:  "attributes classes are equal or there is no match",
			delayed: []Claim{claim("a", "local", gib, func(c *Claim) { c.AttributesClass = "gold" })},
			volumes: []*Volume{pv("plain", "local", gib, "n1"), gold}, want: []string{"default/a on gold"},
		},
		"access modes": {
			reason:  "the volume offers every mode asked",
			delayed: []Claim{claim("a", "local", gib, func(c *Claim) { c.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany} })},
			volumes: []*Volume{pv("plain", "local", gib, "n1")},
			want:    []string{"NoMatchingVolume: claim default/a asks 1 GiB"},
		},
		"only one of two": {
			reason:  "one volume serves one claim",
			delayed: []Claim{claim("a", "local", gib), claim("b", "local", gib)},
			volumes: []*Volume{pv("x", "local", gib, "n1")},
			want:    []string{"NoMatchingVolume: claims default/a, default/b ask 2 GiB together"},
		},
		"greedy is wrong": {
			reason:  "the claim with a choice leaves the volume to the one without (upstream refuses)",
			delayed: []Claim{claim("any", "local", gib), claim("picky", "local", gib, func(c *Claim) { c.Selector = blue })},
			volumes: []*Volume{blueVolume, pv("large", "local", 9*gib, "n1")},
			want:    []string{"default/any on large", "default/picky on blue"},
		},
		"static and dynamic": {
			reason:  "what finds no volume is provisioned",
			delayed: []Claim{claim("a", "berth", gib, dynamic), claim("b", "berth", 2*gib, dynamic)},
			volumes: []*Volume{pv("x", "berth", gib, "n1")}, segments: map[string][]segmentAt{"berth": {segment("n1", "p", 2*gib)}},
			want: []string{"default/a on x", "default/b provisioned in p"},
		},
		"the large one is matched": {
			reason:  "greedy gives the volume to the small claim and leaves too much to the pool",
			delayed: []Claim{claim("a", "berth", gib, dynamic), claim("b", "berth", 4*gib, dynamic)},
			volumes: []*Volume{pv("x", "berth", 5*gib, "n1")}, segments: map[string][]segmentAt{"berth": {segment("n1", "p", 2*gib)}},
			want: []string{"default/a provisioned in p", "default/b on x"},
		},
		"no room": {
			reason:   "the detail says the most that any node has",
			delayed:  []Claim{claim("a", "berth", 3*gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 2*gib), segment("n2", "q", 8*gib)}},
			want:     []string{"NotEnoughCapacity: claim default/a asks 3 GiB; the freest pool of class berth has 8 GiB"},
		},
		"no room together": {
			reason:   "each fits, both do not (upstream accepts)",
			delayed:  []Claim{claim("a", "berth", 3*gib, dynamic), claim("b", "berth", 2*gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 4*gib)}},
			want:     []string{"NotEnoughCapacity: claims default/a, default/b ask 5 GiB together; the freest pool of class berth has 4 GiB"},
		},
		"two classes, one pool": {
			reason:   "classes that share a pool share its bytes",
			delayed:  []Claim{claim("a", "fast", 3*gib, dynamic), claim("b", "slow", 2*gib, dynamic)},
			segments: map[string][]segmentAt{"fast": {segment("n1", "p", 4*gib)}, "slow": {segment("n1", "p", 4*gib)}},
			want:     []string{"NotEnoughCapacity: claims default/a, default/b ask 5 GiB together; the freest pool of class fast has 4 GiB"},
		},
		"two pools": {
			reason:   "a class with two pools on the node packs both",
			delayed:  []Claim{claim("a", "berth", 3*gib, dynamic), claim("b", "berth", 2*gib, dynamic), claim("c", "berth", 2*gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 3*gib), segment("n1", "q", 4*gib)}},
			want:     []string{"default/a provisioned in p", "default/b provisioned in q", "default/c provisioned in q"},
		},
		"largest volume": {
			reason:   "maximumVolumeSize bounds each claim",
			delayed:  []Claim{claim("a", "berth", 3*gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {{"n1", Segment{Pool: "p", Available: 9 * gib, Bounded: true, MaximumVolumeSize: 2 * gib}}}},
			want:     []string{"NotEnoughCapacity: claim default/a asks 3 GiB; the freest pool of class berth has 9 GiB"},
		},
		"no volume possible": {
			reason:   "a published maximum of zero is not unlimited",
			delayed:  []Claim{claim("a", "berth", 3*gib, dynamic)},
			segments: map[string][]segmentAt{"berth": {{"n1", Segment{Pool: "p", Available: 9 * gib, Bounded: true}}}},
			want:     []string{"NotEnoughCapacity: claim default/a asks 3 GiB; the freest pool of class berth has 9 GiB"},
		},
		"nothing published": {
			reason:  "a driver that tracks capacity and publishes none has none",
			delayed: []Claim{claim("a", "berth", gib, dynamic)},
			want:    []string{"NotEnoughCapacity: claim default/a asks 1 GiB; no capacity is published for class berth"},
		},
		"not tracked": {
			reason:  "without CSIDriver.spec.storageCapacity nothing is checked",
			delayed: []Claim{claim("a", "berth", gib, func(c *Claim) { c.Class.Provisions = true })},
			want:    []string{"default/a provisioned"},
		},
		"no size": {
			reason:  "a claim that asks for no size fits",
			delayed: []Claim{claim("a", "berth", 0, dynamic, func(c *Claim) { c.HasRequest = false })},
			want:    []string{"default/a provisioned"},
		},
		"topology": {
			reason:  "the class allows other nodes only",
			delayed: []Claim{claim("a", "berth", gib, zone1)},
			want:    []string{"TopologyNotAllowed: claim default/a: class berth allows only zone=z1"},
		},
		"selected elsewhere": {
			reason:  "a provisioner is at work on another node, and no static volume helps",
			delayed: []Claim{claim("a", "local", gib, func(c *Claim) { c.SelectedNode = "n9" })}, volumes: []*Volume{pv("x", "local", gib, "n1")},
			want: []string{"SelectedElsewhere: claim default/a is being provisioned on n9"},
		},
		"selected here": {
			reason:   "the ledger holds the claim's bytes already, so a full pool does not refuse it",
			delayed:  []Claim{claim("a", "berth", 3*gib, dynamic, func(c *Claim) { c.SelectedNode = "n1" })},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 0)}},
			want:     []string{"default/a provisioned"},
		},
		"reserved here": {
			reason:  "a volume that names the claim is taken, whatever its labels",
			delayed: []Claim{claim("a", "local", gib, func(c *Claim) { c.Reserved, c.Selector = pv("mine", "local", gib, "n1"), blue })},
			volumes: []*Volume{pv("x", "local", gib, "n1")}, want: []string{"default/a on mine"},
		},
		"reserved elsewhere": {
			reason:  "no other volume is taken and none provisioned (upstream provisions)",
			delayed: []Claim{claim("a", "berth", gib, dynamic, func(c *Claim) { c.Reserved = pv("mine", "berth", gib, "n2") })},
			want:    []string{"NoMatchingVolume: claim default/a has mine reserved, at host=n2"},
		},
		"source here": {
			reason:   "a snapshot that is here can be restored here",
			delayed:  []Claim{claim("a", "berth", gib, dynamic, func(c *Claim) { c.Source = &Source{"snapshot default/s", on("n1")} })},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 2*gib)}},
			want:     []string{"default/a provisioned in p"},
		},
		"source elsewhere": {
			reason:   "the driver could only refuse (upstream tries)",
			delayed:  []Claim{claim("a", "berth", gib, dynamic, func(c *Claim) { c.Source = &Source{"snapshot default/s", on("n2")} })},
			segments: map[string][]segmentAt{"berth": {segment("n1", "p", 2*gib)}},
			want:     []string{"SourceElsewhere: claim default/a is made from snapshot default/s, at host=n2"},
		},
		"reserved too small": {
			reason:  "a reserved volume that cannot serve the claim is as if it were not (upstream)",
			delayed: []Claim{claim("a", "local", 2*gib, func(c *Claim) { c.Reserved = pv("mine", "local", gib, "n1") })},
			volumes: []*Volume{pv("x", "local", 2*gib, "n1")}, want: []string{"default/a on x"},
		},
		"reserved in another class": {
			reason:  "the PV controller would never bind it (upstream does not see it)",
			delayed: []Claim{claim("a", "local", gib, func(c *Claim) { c.Reserved = pv("mine", "odd", gib, "n1") })},
			volumes: []*Volume{pv("x", "local", gib, "n1")}, want: []string{"default/a on x"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := find(NewPod(tc.bound, tc.delayed), node("n1"), world{tc.volumes, tc.segments})
			if diff := gocmp.Diff(tc.want, answer(got)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			if got.OK() != (len(got.Refusals) == 0) {
				t.Errorf("OK() disagrees with the refusals %v", got.Refusals)
			}
		})
	}
}

// TestShun: a node that refused lately is the last choice, not no choice.
func TestShun(t *testing.T) {
	w := world{volumes: []*Volume{pv("x", "berth", 2*gib, "n3")}, segments: map[string][]segmentAt{"berth": {segment("n1", "p", 8*gib), segment("n2", "q", 8*gib), segment("n3", "r", 8*gib)}}}
	refused := func(c *Claim) { c.Refused = map[string]struct{}{"n1": {}, "n3": {}} }
	pod := NewPod(nil, []Claim{claim("a", "berth", gib, dynamic, refused)})
	q := NewQuestion(pod, w)
	if !q.Wary() || NewQuestion(NewPod(nil, []Claim{claim("a", "berth", gib, dynamic)}), w).Wary() {
		t.Error("Wary does not tell a refused claim from another")
	}
	want := map[string][]string{
		"n1": {"NotEnoughCapacity: claim default/a asks 1 GiB; the driver refused it here lately"},
		"n2": {"default/a provisioned in q"},
		"n3": {"default/a on x"},
	}
	got := map[string][]string{}
	for _, n := range []string{"n1", "n2", "n3"} {
		got[n] = answer(Find(q.Shun(), node(n)))
		if v := Find(q, node(n)); !v.OK() {
			t.Errorf("%s is refused although nobody shuns it: %v", n, answer(v))
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestInTree: a volume of a migrated plugin is where its driver says on nodes
// that handle it as CSI, and where its own affinity says on others.
func TestInTree(t *testing.T) {
	moved := pv("ebs", "", gib, "old")
	moved.InTree = &InTree{Plugin: "kubernetes.io/aws-ebs", Place: on("new")}
	broken := pv("broken", "", gib, "old")
	broken.InTree = &InTree{Plugin: "kubernetes.io/aws-ebs", Err: errors.New("no volume id")}
	cases := map[string]struct {
		reason   string
		volume   *Volume
		host     string
		migrated string
		want     []string
		wantErr  string
	}{
		"migrated, new key":  {reason: "the driver's topology", volume: moved, host: "new", migrated: "kubernetes.io/gce-pd,kubernetes.io/aws-ebs"},
		"migrated, old key":  {reason: "the driver's topology", volume: moved, host: "old", migrated: "kubernetes.io/aws-ebs", want: []string{"NodeAffinity: claim default/a is bound to ebs, at host=old"}},
		"not migrated":       {reason: "the volume's own affinity", volume: moved, host: "old", migrated: "kubernetes.io/gce-pd"},
		"a longer name":      {reason: "names are compared whole", volume: moved, host: "old", migrated: "kubernetes.io/aws-ebs-next"},
		"cannot, needed":     {reason: "an error, not a refusal (upstream)", volume: broken, host: "old", migrated: "kubernetes.io/aws-ebs", wantErr: "no volume id"},
		"cannot, not needed": {reason: "nobody asks", volume: broken, host: "old"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n := node(tc.host)
			n.Migrated = tc.migrated
			got := find(NewPod([]Claim{bound(tc.volume)}, nil), n, world{})
			if diff := gocmp.Diff(tc.want, answer(got)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			if text := fmt.Sprint(got.Err); tc.wantErr == "" && got.Err != nil || !strings.Contains(text, tc.wantErr) || got.OK() == (len(tc.want) > 0 || tc.wantErr != "") {
				t.Errorf("%s: error %v, want %q", tc.reason, got.Err, tc.wantErr)
			}
		})
	}
}

func TestOneCauseOneText(t *testing.T) {
	w := world{segments: map[string][]segmentAt{"berth": {segment("n1", "p1", gib), segment("n2", "p2", 2*gib), segment("n3", "p3", 0)}}}
	pod := NewPod(nil, []Claim{claim("b", "berth", 2*gib, dynamic), claim("a", "berth", 2*gib, dynamic)})
	texts := map[string]bool{}
	for _, n := range []string{"n1", "n2", "n3"} {
		v := find(pod, node(n), w)
		if v.OK() {
			t.Fatalf("node %s was not refused", n)
		}
		for _, r := range v.Refusals {
			texts[r.String()] = true
			if len(r.String()) > volume.DetailMax {
				t.Errorf("text of %d bytes: %s", len(r.String()), r)
			}
		}
	}
	// n2 could take either claim and n1 none, so two causes: one claim alone,
	// and both together.
	if len(texts) > 2 {
		t.Errorf("%d texts for two causes:\n%s", len(texts), strings.Join(slices.Sorted(maps.Keys(texts)), "\n"))
	}
}

func TestPlan(t *testing.T) {
	w := world{
		volumes:  []*Volume{pv("x", "berth", gib, "n1")},
		segments: map[string][]segmentAt{"berth": {segment("n1", "p", 4*gib)}},
	}
	pod := NewPod(nil, []Claim{claim("b", "berth", 2*gib, dynamic), claim("a", "berth", gib, dynamic)})
	plan := Plan("n1", find(pod, node("n1"), w))
	if want, got := "node n1\nbind default/a to x\nprovision default/b\n", plan.String(); want != got {
		t.Errorf("plan:\n%s\nwant:\n%s", got, want)
	}
	if plan.Empty() {
		t.Error("a plan with steps is empty")
	}
	if p := Plan("n1", find(NewPod([]Claim{bound(pv("x", "", gib, ""))}, nil), node("n1"), w)); !p.Empty() {
		t.Errorf("bound claims need no step, got %v", p)
	}
}
