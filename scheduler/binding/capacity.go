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

// packing gives every claim a segment, so that what the claims take from each
// pool stays within what every segment used of that pool has available. Objects
// of one pool may disagree for a moment; the strictest one used decides. Largest
// claims first, each tried in its segments with the most available first.
type packing struct {
	claims     []*option
	chosen     []*Segment
	steps      int
	provisions []Provision
}

// fit packs the claims. The answer is valid until the next call.
func (p *packing) fit(claims []*option) ([]Provision, bool) {
	p.claims, p.chosen, p.provisions, p.steps = append(p.claims[:0], claims...), p.chosen[:0], p.provisions[:0], 0
	if len(claims) > 1 {
		slices.SortStableFunc(p.claims, func(a, b *option) int { return cmp.Compare(b.claim.Request, a.claim.Request) })
	}
	for _, o := range p.claims {
		if o.shunned {
			return nil, false
		}
		if len(o.segments) > 1 {
			slices.SortStableFunc(o.segments, func(a, b *Segment) int { return cmp.Compare(b.Available, a.Available) })
		}
		p.chosen = append(p.chosen, nil)
	}
	if !p.from(0) {
		return nil, false
	}
	for i, o := range p.claims {
		p.provisions = append(p.provisions, Provision{Claim: o.claim, Segment: p.chosen[i]})
	}
	return p.provisions, true
}

func (p *packing) from(k int) bool {
	if k == len(p.claims) {
		return true
	}
	o := p.claims[k]
	if o.unchecked {
		return p.from(k + 1)
	}
	for _, s := range o.segments {
		if p.steps++; p.steps > stepsMax {
			return false
		}
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
	if k == 0 {
		return true
	}
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
