package binding

import (
	"cmp"
	"slices"

	"github.com/berth-storage/berth/volume"
)

// stepsMax bounds the packing of claims into pools. Almost every class has one
// pool on a node, where one step a claim is enough.
const stepsMax = 1 << 12

// admits reports whether the segment alone could take the claim.
func (s *Segment) admits(bytes int64) bool {
	if s.Bounded && bytes > s.MaximumVolumeSize {
		return false
	}
	return s.Unlimited || bytes <= s.Available
}

// fit gives every claim a segment, so that what the claims take from each pool
// stays within what every segment used of that pool has available. Objects of
// one pool may disagree for a moment; the strictest one used decides.
func fit(claims []*option) ([]Provision, bool) {
	p := packing{chosen: make([]*Segment, len(claims)), claims: slices.Clone(claims)}
	slices.SortStableFunc(p.claims, func(a, b *option) int {
		return cmp.Compare(b.claim.Request, a.claim.Request)
	})
	if !p.from(0) {
		return nil, false
	}
	out := make([]Provision, 0, len(claims))
	for i, o := range p.claims {
		out = append(out, Provision{Claim: o.claim, Segment: p.chosen[i]})
	}
	return out, true
}

// packing is the state of fit: largest claims first, each tried in its
// segments with the most available first.
type packing struct {
	claims []*option
	chosen []*Segment
	steps  int
}

func (p *packing) from(k int) bool {
	if k == len(p.claims) {
		return true
	}
	o := p.claims[k]
	if o.unchecked {
		return p.from(k + 1)
	}
	for _, i := range byAvailable(o.segments) {
		if p.steps++; p.steps > stepsMax {
			return false
		}
		s := &o.segments[i]
		if !s.admits(o.claim.Request) {
			continue
		}
		p.chosen[k] = s
		if p.holds(k, s.Pool) && p.from(k+1) {
			return true
		}
		p.chosen[k] = nil
	}
	return false
}

// holds reports whether the pool can take the first k+1 claims as chosen.
func (p *packing) holds(k int, pool string) bool {
	var sum int64
	for i := 0; i <= k; i++ {
		if s := p.chosen[i]; s != nil && s.Pool == pool {
			sum = volume.AddSaturating(sum, p.claims[i].claim.Request)
		}
	}
	for i := 0; i <= k; i++ {
		if s := p.chosen[i]; s != nil && s.Pool == pool && !s.Unlimited && sum > s.Available {
			return false
		}
	}
	return true
}

// byAvailable orders positions by falling Available, without moving segments
// that others point at.
func byAvailable(segments []Segment) []int {
	order := make([]int, len(segments))
	for i := range order {
		order[i] = i
	}
	if len(order) > 1 {
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Compare(segments[b].Available, segments[a].Available)
		})
	}
	return order
}
