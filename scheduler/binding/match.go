package binding

import (
	"cmp"
	"slices"
	"strings"
)

// candidates returns the limit smallest free volumes that fit the claim and
// that the node reaches, smallest first.
func candidates(c *Claim, node Node, view View, limit int) []*Volume {
	var found []*Volume
	for _, shelf := range view.Shelves(c.Class.Name, node) {
		taken := 0
		for v := range shelf.From(c.Request) {
			if !c.fits(v) {
				continue
			}
			found = append(found, v)
			if taken++; taken == limit {
				break
			}
		}
	}
	slices.SortFunc(found, func(a, b *Volume) int {
		if n := cmp.Compare(a.Capacity, b.Capacity); n != 0 {
			return n
		}
		return strings.Compare(a.Name, b.Name)
	})
	return found[:min(len(found), limit)]
}

// greedy is upstream's answer: by rising request, each claim takes the smallest
// free volume that fits; the rest is provisioned. It is kept wherever it is
// complete, so that a pod that upstream places gets the volumes that upstream
// would give it. options are in the order of NewPod.
func greedy(options []option) (Verdict, bool) {
	var v Verdict
	var rest []*option
	for i := range options {
		o := &options[i]
		at := slices.IndexFunc(o.volumes, func(vol *Volume) bool {
			return !slices.ContainsFunc(v.Bindings, func(b Binding) bool { return b.Volume.Name == vol.Name })
		})
		switch {
		case at >= 0:
			v.Bindings = append(v.Bindings, Binding{o.claim, o.volumes[at]})
		case o.provisions:
			rest = append(rest, o)
		default:
			return Verdict{}, false
		}
	}
	var ok bool
	v.Provisions, ok = fit(rest)
	return v, ok
}

// leavesMax bounds the search to all choices of a pod of 12 claims that could
// each be matched or provisioned. Beyond that the best matching found first
// decides alone.
const leavesMax = 1 << 12

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
	holder map[string]int
	// held is the volume that a claim holds, by position in order.
	held   []*Volume
	leaves int

	// first is what the first complete try left to provision, for the refusal.
	first []*option
	// stuck are the claims that could be neither matched nor provisioned in
	// the first try, for the refusal.
	stuck []*option
	tried bool
}

func newSearch(options []option) *search {
	s := &search{holder: map[string]int{}, held: make([]*Volume, len(options))}
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
	return s
}

// run returns the first complete answer.
func (s *search) run() (Verdict, bool) { return s.from(0, nil) }

// from chooses for the claims from k on; rest are those to be provisioned.
func (s *search) from(k int, rest []*option) (Verdict, bool) {
	if k == len(s.order) {
		return s.leaf(rest)
	}
	if s.leaves >= leavesMax {
		return Verdict{}, false
	}
	holder, held := cloneMap(s.holder), slices.Clone(s.held)
	if s.augment(k, map[string]bool{}) {
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
	provisions, ok := fit(rest)
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
func (s *search) augment(k int, seen map[string]bool) bool {
	for _, v := range s.order[k].volumes {
		if seen[v.Name] {
			continue
		}
		seen[v.Name] = true
		other, taken := s.holder[v.Name]
		if taken && !s.augment(other, seen) {
			continue
		}
		s.holder[v.Name], s.held[k] = k, v
		return true
	}
	return false
}

func cloneMap(m map[string]int) map[string]int {
	out := make(map[string]int, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
