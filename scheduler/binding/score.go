package binding

import "math"

// ScoreMax is the score of a node whose storage the pod would leave empty.
const ScoreMax = 100

// Score prefers the emptiest node, as upstream does by default (volumebinding,
// scorer.go, shape 0→10, 100→0): per class, the share of its storage that
// stays free, and the mean over classes. Where the pod takes any existing
// volume, only those count: the tightest fits win there. A verdict that
// consumes no storage scores 0.
func (v *Verdict) Score() int64 {
	type use struct{ requested, capacity float64 }
	classes := map[string]*use{}
	at := func(class string) *use {
		if classes[class] == nil {
			classes[class] = &use{}
		}
		return classes[class]
	}
	for _, b := range v.Bindings {
		u := at(b.Claim.Class.Name)
		u.requested += float64(b.Claim.Request)
		u.capacity += float64(b.Volume.Capacity)
	}
	if len(v.Bindings) == 0 {
		pools := map[string]bool{}
		for _, p := range v.Provisions {
			if p.Segment == nil {
				continue
			}
			u := at(p.Claim.Class.Name)
			u.requested += float64(p.Claim.Request)
			if id := p.Claim.Class.Name + "\x00" + p.Segment.Pool; !pools[id] {
				pools[id] = true
				u.capacity += float64(max(p.Segment.Available, 0))
			}
		}
	}
	if len(classes) == 0 {
		return 0
	}
	var sum float64
	for _, u := range classes {
		if u.capacity > 0 && u.requested <= u.capacity {
			sum += ScoreMax - math.Floor(u.requested*ScoreMax/u.capacity)
		}
	}
	return int64(math.Round(sum / float64(len(classes))))
}
