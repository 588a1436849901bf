package binding

import (
	"math"
	"math/bits"

	"github.com/berth-storage/berth/volume"
)

// scoreScale turns the scores of a Shape, 0 to 10, into those of a Score plugin.
const scoreScale = 10

// ShapePoint is one corner of a Shape: the score of a node whose storage would
// be used to that part.
type ShapePoint struct {
	// Utilization is in percent, 0 to 100; Score is 0 to 10.
	Utilization, Score int64
}

// Shape is a line through points of rising Utilization, level beyond both ends
// (upstream: volumebinding, scorer.go).
type Shape []ShapePoint

// DefaultShape prefers the node whose storage stays emptiest, as upstream does.
func DefaultShape() Shape { return Shape{{0, 10}, {100, 0}} }

// at is the score of a utilization, 0 to 100. Halves are cut as upstream cuts
// them: towards zero, on each line from its left end.
func (s Shape) at(utilization int64) int64 {
	for i, p := range s {
		if utilization > p.Utilization {
			continue
		}
		if i == 0 {
			return p.Score * scoreScale
		}
		l := s[i-1]
		return l.Score*scoreScale + (p.Score-l.Score)*scoreScale*(utilization-l.Utilization)/(p.Utilization-l.Utilization)
	}
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].Score * scoreScale
}

// use is what a verdict takes of one class's storage.
type use struct {
	class               string
	requested, capacity int64
}

// utilization is in whole percent, cut; what cannot be full is 100.
func (u use) utilization() int64 {
	if u.capacity <= 0 || u.requested > u.capacity {
		return 100
	}
	// requested*100 may pass 64 bits; the quotient is at most 100.
	hi, lo := bits.Mul64(uint64(max(u.requested, 0)), 100)
	q, _ := bits.Div64(hi, lo, uint64(u.capacity))
	return int64(q) //nolint:gosec // at most 100
}

// Score is the mean over classes of what the shape gives for the part of the
// class's storage that the pod would use. Where the pod takes any existing
// volume, only those count: the tightest fits win there. A verdict that consumes
// no measured storage scores 0.
func (v *Verdict) Score(shape Shape) int64 {
	var uses []use
	at := func(class string) *use {
		for i := range uses {
			if uses[i].class == class {
				return &uses[i]
			}
		}
		uses = append(uses, use{class: class})
		return &uses[len(uses)-1]
	}
	for _, b := range v.Bindings {
		u := at(b.Claim.Class.Name)
		u.requested = volume.AddSaturating(u.requested, b.Claim.Request)
		u.capacity = volume.AddSaturating(u.capacity, b.Volume.Capacity)
	}
	if len(v.Bindings) == 0 {
		for i, p := range v.Provisions {
			if p.Segment == nil {
				continue
			}
			u := at(p.Claim.Class.Name)
			u.requested = volume.AddSaturating(u.requested, p.Claim.Request)
			if !v.countedBefore(i) {
				u.capacity = volume.AddSaturating(u.capacity, p.Segment.room())
			}
		}
	}
	if len(uses) == 0 {
		return 0
	}
	var sum int64
	for _, u := range uses {
		sum += shape.at(u.utilization())
	}
	return int64(math.Round(float64(sum) / float64(len(uses))))
}

// countedBefore reports whether an earlier provision takes from the same pool
// for the same class.
func (v *Verdict) countedBefore(i int) bool {
	for _, p := range v.Provisions[:i] {
		if p.Segment != nil && p.Segment.Pool == v.Provisions[i].Segment.Pool && p.Claim.Class.Name == v.Provisions[i].Claim.Class.Name {
			return true
		}
	}
	return false
}

// room is what the segment has, for a score. One that publishes no capacity
// says nothing about how full it is and counts as full.
func (s *Segment) room() int64 {
	if s.Unlimited {
		return 0
	}
	return max(s.Available, 0)
}
