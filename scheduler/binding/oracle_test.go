package binding

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-storage/berth/test/seeds"
)

// matches is every rule of a match but place.
func matches(c *Claim, v *Volume) bool {
	return fits(c, v) && (c.Selector == nil || c.Selector.Matches(labels.Set(v.Labels)))
}

// feasible tries every way to give each claim a volume or a segment. It knows
// nothing of order, paths or packing.
func feasible(claims []Claim, w world, n Node) bool {
	used := map[string]bool{}
	asked := map[string]int64{}
	limits := map[string][]int64{}
	var try func(k int) bool
	try = func(k int) bool {
		if k == len(claims) {
			for pool, ls := range limits {
				for _, l := range ls {
					if asked[pool] > l {
						return false
					}
				}
			}
			return true
		}
		c := &claims[k]
		for _, v := range w.volumes {
			if used[v.Name] || !reaches(v, &n) || !matches(c, v) {
				continue
			}
			used[v.Name] = true
			if try(k + 1) {
				return true
			}
			used[v.Name] = false
		}
		if !c.Class.Provisions {
			return false
		}
		for _, s := range w.Room(c.Class.Name).Segments(nil, &n) {
			if s.Bounded && c.Request > s.MaximumVolumeSize {
				continue
			}
			asked[s.Pool] += c.Request
			limits[s.Pool] = append(limits[s.Pool], s.Available)
			if try(k + 1) {
				return true
			}
			asked[s.Pool] -= c.Request
			limits[s.Pool] = limits[s.Pool][:len(limits[s.Pool])-1]
		}
		return false
	}
	return try(0)
}

// sound checks an answer against the rules, without asking how it was found.
func sound(claims []Claim, n Node, v Verdict) error {
	seen := map[string]bool{}
	used := map[string]bool{}
	asked := map[string]int64{}
	for _, b := range v.Bindings {
		if seen[b.Claim.Key] || used[b.Volume.Name] {
			return fmt.Errorf("%s or %s is used twice", b.Claim.Key, b.Volume.Name)
		}
		if !matches(b.Claim, b.Volume) || !reaches(b.Volume, &n) {
			return fmt.Errorf("%s does not fit %s", b.Volume.Name, b.Claim.Key)
		}
		seen[b.Claim.Key], used[b.Volume.Name] = true, true
	}
	for _, p := range v.Provisions {
		if seen[p.Claim.Key] {
			return fmt.Errorf("%s is answered twice", p.Claim.Key)
		}
		seen[p.Claim.Key] = true
		asked[p.Segment.Pool] += p.Claim.Request
	}
	for _, p := range v.Provisions {
		if asked[p.Segment.Pool] > p.Segment.Available {
			return fmt.Errorf("pool %s takes %d of %d", p.Segment.Pool, asked[p.Segment.Pool], p.Segment.Available)
		}
	}
	if len(seen) != len(claims) {
		return fmt.Errorf("%d of %d claims are answered", len(seen), len(claims))
	}
	return nil
}

// greedyAnswers reports whether upstream's order alone finds an answer.
func greedyAnswers(pod *Pod, n Node, w world) bool {
	j, q := new(Judge), NewQuestion(pod, w)
	j.options = make([]option, len(pod.Delayed))
	for i := range pod.Delayed {
		j.options[i].reset(&pod.Delayed[i])
		if _, refused := j.gather(&j.options[i], q, i, &n); refused {
			return false
		}
	}
	_, ok := j.greedy()
	return ok
}

// randomWorld is small and tight, so that both answers are common and greedy is
// often wrong.
func randomWorld(r *rand.Rand) (world, []Claim) {
	w := world{segments: map[string][]segmentAt{}}
	colors := []string{"red", "blue"}
	classes := []string{"A", "B"}
	for i := range r.IntN(5) {
		v := pv(fmt.Sprintf("v%d", i), classes[r.IntN(2)], int64(1+r.IntN(4)), []string{"n1", "n1", "n2", ""}[r.IntN(4)])
		v.Labels = map[string]string{"color": colors[r.IntN(2)]}
		w.volumes = append(w.volumes, v)
	}
	pools := []string{"p", "q"}
	for _, class := range classes {
		for _, pool := range pools[:r.IntN(3)] {
			s := segment("n1", pool, int64(r.IntN(8)))
			if r.IntN(3) == 0 {
				s.Bounded, s.MaximumVolumeSize = true, int64(r.IntN(4))
			}
			w.segments[class] = append(w.segments[class], s)
		}
	}
	provisions := map[string]bool{"A": r.IntN(3) > 0, "B": r.IntN(3) > 0}
	var claims []Claim
	for i := range 1 + r.IntN(4) {
		class := classes[r.IntN(2)]
		claims = append(claims, claim(fmt.Sprintf("c%d", i), class, int64(1+r.IntN(4)), func(c *Claim) {
			c.Class.Provisions, c.Class.TracksCapacity = provisions[class], true
			if r.IntN(3) == 0 {
				c.Selector = labels.SelectorFromSet(labels.Set{"color": colors[r.IntN(2)]})
			}
		}))
	}
	return w, claims
}

func TestFindAgainstEveryChoice(t *testing.T) {
	var yes, no, beyondGreedy int
	rounds := seeds.Rounds(t, 10_000, func(seed uint64, r *rand.Rand) {
		w, claims := randomWorld(r)
		n := node("n1")
		pod := NewPod(nil, claims)
		got := find(pod, n, w)
		want := feasible(claims, w, n)
		if got.OK() != want {
			t.Fatalf("seed %d: OK %v, want %v\nclaims %+v\nvolumes %+v\nsegments %+v\nanswer %v", seed, got.OK(), want, claims, w.volumes, w.segments, answer(got))
		}
		if !want {
			no++
			return
		}
		yes++
		if err := sound(claims, n, got); err != nil {
			t.Fatalf("seed %d: %v: %v", seed, err, answer(got))
		}
		if !greedyAnswers(pod, n, w) {
			beyondGreedy++
		}
	})
	// A generator that stops making hard cases would make this test worthless.
	if rounds >= 1000 && (yes < rounds/10 || no < rounds/10 || beyondGreedy < rounds/200) {
		t.Errorf("poor cases: %d feasible, %d not, %d beyond the greedy answer", yes, no, beyondGreedy)
	}
}

// TestSearchIsBounded: a pod of many claims that do not fit, where each could be
// matched or provisioned, costs a bounded number of steps on a node.
func TestSearchIsBounded(t *testing.T) {
	cases := map[string]struct {
		reason       string
		claims, most int
		pools        int
	}{
		"one pool":   {"the first complete try decides", 24, 48, 1},
		"four pools": {"the steps of all tries are counted together", 24, searchStepsMax + stepsMax, 4},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := world{segments: map[string][]segmentAt{}}
			var claims []Claim
			for i := range tc.claims {
				claims = append(claims, Claim{Key: fmt.Sprintf("ns/c%02d", i), UID: strconv.Itoa(i), Class: Class{Name: "A", Provisions: true, TracksCapacity: true}, Request: 10, HasRequest: true})
				if i%2 == 0 {
					w.volumes = append(w.volumes, &Volume{Name: fmt.Sprint("v", i), Class: "A", Capacity: 100})
				}
			}
			for i := range tc.pools {
				w.segments["A"] = append(w.segments["A"], segmentAt{"n1", Segment{Pool: fmt.Sprint("P", i), Available: int64(10 * (tc.claims/2 - 1) / tc.pools)}})
			}
			q := NewQuestion(NewPod(nil, claims), w)
			node := Node{Name: "n1", Labels: map[string]string{"host": "n1"}}
			options := make([]option, len(claims))
			var j Judge
			for i := range claims {
				options[i].reset(&q.Pod.Delayed[i])
				if r, refused := j.gather(&options[i], q, i, &node); refused {
					t.Fatal(r)
				}
			}
			var p packing
			s := newSearch(options, &p)
			if v, found := s.run(); found {
				t.Fatalf("it fits: %v", v)
			}
			if s.steps > tc.most {
				t.Errorf("%s: %d steps, want at most %d", tc.reason, s.steps, tc.most)
			}
		})
	}
}
