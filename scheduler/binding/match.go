package binding

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// collector keeps the smallest volumes that fit a claim, smallest first, out of
// the rising lists of a Shelf. It implements Taker.
type collector struct {
	claim *Claim
	limit int
	found []*Volume
}

func (c *collector) start(claim *Claim, limit int, buf []*Volume) {
	*c = collector{claim: claim, limit: limit, found: buf}
}

// Take implements Taker.
func (c *collector) Take(v *Volume) bool {
	if c.claim.Selector != nil && !c.claim.Selector.Matches(labels.Set(v.Labels)) {
		return true
	}
	at := len(c.found)
	for at > 0 && smaller(v, c.found[at-1]) {
		at--
	}
	switch {
	case at > 0 && c.found[at-1] == v:
		return true
	case at == c.limit:
		return false
	case len(c.found) < c.limit:
		c.found = append(c.found, nil)
	}
	copy(c.found[at+1:], c.found[at:])
	c.found[at] = v
	// Of a list that rises, what follows is larger than v.
	return at+1 < c.limit
}

// smaller orders by capacity, then by name, so that equal inputs give equal
// answers.
func smaller(a, b *Volume) bool {
	return a.Capacity < b.Capacity || a.Capacity == b.Capacity && a.Name < b.Name
}

// greedy is upstream's answer: by rising request, each claim takes the smallest
// free volume that fits; the rest is provisioned. It is kept wherever it is
// complete, so that a pod that upstream places gets the volumes that upstream
// would give it. options are in the order of NewPod.
func (j *Judge) greedy() (Verdict, bool) {
	j.bindings, j.rest = j.bindings[:0], j.rest[:0]
	for i := range j.options {
		o := &j.options[i]
		v := firstFree(o.volumes, j.bindings)
		switch {
		case v != nil:
			j.bindings = append(j.bindings, Binding{o.claim, v})
		case o.provisions:
			j.rest = append(j.rest, o)
		default:
			return Verdict{}, false
		}
	}
	provisions, ok := j.packing.fit(j.rest)
	return Verdict{Bindings: j.bindings, Provisions: provisions}, ok
}

// firstFree is the smallest volume that no binding took, nil for none.
func firstFree(volumes []*Volume, taken []Binding) *Volume {
	for _, v := range volumes {
		if !slices.ContainsFunc(taken, func(b Binding) bool { return b.Volume == v }) {
			return v
		}
	}
	return nil
}

// leavesMax bounds the search to all choices of a pod of 12 claims that could
// each be matched or provisioned. Beyond that the choices that came first decide,
// which begin with the best matching.
const leavesMax = 1 << 12

// searchStepsMax bounds what all choices may cost in steps of packing.
const searchStepsMax = 1 << 16

// search looks for a complete answer where greedy has none: which claims take
// a free volume (by augmenting paths, so that a claim with one choice gets it)
// and which are provisioned.
//
// Claims that can only be matched come first, then the largest. As sets of
// matchable claims form a matroid, the first complete try then leaves the
// fewest bytes to provision, which is optimal for one pool; trying the other
// choices finds the answers that several pools or size limits need.
type search struct {
	order []*option
	// holder is the claim that holds a volume, by position in order.
	holder map[*Volume]int
	// held is the volume that a claim holds, by position in order.
	held   []*Volume
	leaves int
	// steps are those of packing, over all leaves.
	steps int
	// one: the claims that could be provisioned share one segment, so that the
	// first complete try decides.
	one bool

	// first is what the first complete try left to provision, for the refusal.
	first []*option
	// stuck are the claims that could be neither matched nor provisioned in
	// the first try, for the refusal.
	stuck []*option
	tried bool

	packing *packing
}

func newSearch(options []option, p *packing) *search {
	s := &search{holder: map[*Volume]int{}, held: make([]*Volume, len(options)), packing: p}
	for i := range options {
		s.order = append(s.order, &options[i])
	}
	slices.SortStableFunc(s.order, func(a, b *option) int {
		if a.provisions != b.provisions {
			if !a.provisions {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.claim.Request, a.claim.Request)
	})
	s.one = oneSegment(options)
	return s
}

// oneSegment reports whether all claims that could be provisioned ask the same
// segment, and that alone.
func oneSegment(options []option) bool {
	var first *Segment
	for i := range options {
		o := &options[i]
		switch {
		case !o.provisions:
			continue
		case o.unchecked || o.shunned || len(o.segments) != 1 || first != nil && o.segments[0] != first:
			return false
		}
		first = o.segments[0]
	}
	return true
}

// run returns the first complete answer.
func (s *search) run() (Verdict, bool) { return s.from(0, nil) }

// from chooses for the claims from k on; rest are those to be provisioned.
func (s *search) from(k int, rest []*option) (Verdict, bool) {
	if k == len(s.order) {
		return s.leaf(rest)
	}
	if s.leaves >= leavesMax || s.steps >= searchStepsMax || s.one && s.leaves > 0 {
		return Verdict{}, false
	}
	holder, held := maps.Clone(s.holder), slices.Clone(s.held)
	if s.augment(k, map[*Volume]bool{}) {
		if v, ok := s.from(k+1, rest); ok {
			return v, true
		}
		s.holder, s.held = holder, held
	}
	o := s.order[k]
	if o.provisions {
		return s.from(k+1, append(slices.Clip(rest), o))
	}
	if !s.tried {
		s.stuck = append(s.stuck, o)
		s.tried = true
	}
	return Verdict{}, false
}

// leaf judges one complete choice.
func (s *search) leaf(rest []*option) (Verdict, bool) {
	s.leaves++
	if !s.tried {
		s.first, s.tried = rest, true
	}
	provisions, ok := s.packing.fit(rest)
	s.steps += s.packing.steps
	if !ok {
		return Verdict{}, false
	}
	v := Verdict{Provisions: provisions}
	for i, vol := range s.held {
		if vol != nil {
			v.Bindings = append(v.Bindings, Binding{s.order[i].claim, vol})
		}
	}
	return v, true
}

// augment gives claim k a volume, moving others to another of theirs where that
// frees one (Kuhn). It leaves everything as it was where it cannot.
func (s *search) augment(k int, seen map[*Volume]bool) bool {
	for _, v := range s.order[k].volumes {
		if seen[v] {
			continue
		}
		seen[v] = true
		other, taken := s.holder[v]
		if taken && !s.augment(other, seen) {
			continue
		}
		s.holder[v], s.held[k] = k, v
		return true
	}
	return false
}
