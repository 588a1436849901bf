package binding

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-storage/berth/volume"
)

func refuseMissing(c *Claim) volume.Refusal {
	return volume.Refusal{
		Reason: volume.ReasonVolumeMissing,
		Detail: fmt.Sprintf("claim %s is bound to %s", c.Key, c.VolumeName),
	}
}

func refuseAffinity(c *Claim) volume.Refusal {
	return volume.Refusal{
		Reason: volume.ReasonNodeAffinity,
		Detail: fmt.Sprintf("claim %s is bound to %s, at %s", c.Key, c.Volume.Name, c.Volume.Place),
	}
}

func refuseSelected(c *Claim) volume.Refusal {
	return volume.Refusal{
		Reason: volume.ReasonSelectedElsewhere,
		Detail: fmt.Sprintf("claim %s is being provisioned on %s", c.Key, c.SelectedNode),
	}
}

func refuseReserved(c *Claim) volume.Refusal {
	return volume.Refusal{
		Reason: volume.ReasonNoMatchingVolume,
		Detail: fmt.Sprintf("claim %s has %s reserved, at %s", c.Key, c.Reserved.Name, c.Reserved.Place),
	}
}

func refuseNoVolume(claims ...*Claim) volume.Refusal {
	return volume.Refusal{Reason: volume.ReasonNoMatchingVolume, Detail: asked(claims)}
}

func refuseOne(c *Claim) volume.Refusal { return refuseNoVolume(c) }

func refuseTopology(c *Claim) volume.Refusal {
	return volume.Refusal{
		Reason: volume.ReasonTopologyNotAllowed,
		Detail: fmt.Sprintf("claim %s: class %s allows only %s", c.Key, c.Class.Name, allowed(&c.Class)),
	}
}

func refuseSource(c *Claim) volume.Refusal {
	return volume.Refusal{
		Reason: volume.ReasonSourceElsewhere,
		Detail: fmt.Sprintf("claim %s is made from %s, at %s", c.Key, c.Source.Name, c.Source.Place),
	}
}

func refuseShunned(c *Claim) volume.Refusal {
	return volume.Refusal{Reason: volume.ReasonNotEnoughCapacity, Detail: asked([]*Claim{c}) + "; the driver refused it here lately"}
}

// refuse says why the claim alone cannot have its volume on the node.
func (o *option) refuse(q *Question) volume.Refusal {
	switch {
	case o.shunned:
		return q.said.refuse(causeShunned, o.claim, refuseShunned)
	case o.provisions:
		return q.said.refuse(causeCapacity, o.claim, func(c *Claim) volume.Refusal { return refuseCapacity([]*Claim{c}, q.view) })
	case o.cause == causeTopology:
		return q.said.refuse(causeTopology, o.claim, refuseTopology)
	case o.cause == causeSource:
		return q.said.refuse(causeSource, o.claim, refuseSource)
	}
	return q.said.refuse(causeNoVolume, o.claim, refuseOne)
}

// explain says why no choice worked. It names the cause that upstream would:
// of the claims that find no volume by smallest fit, the first that fails, those
// that are selected for the node before the others, then by size. Where each would
// do alone, it is what the best choice lacked.
func explain(options []option, s *search, q *Question) []volume.Refusal {
	var taken []Binding
	var rest []*option
	for i := range options {
		o := &options[i]
		if v := firstFree(o.volumes, taken); v != nil {
			taken = append(taken, Binding{o.claim, v})
			continue
		}
		rest = append(rest, o)
	}
	slices.SortStableFunc(rest, func(a, b *option) int {
		switch {
		case (a.claim.SelectedNode != "") == (b.claim.SelectedNode != ""):
			return 0
		case a.claim.SelectedNode != "":
			return -1
		}
		return 1
	})
	for _, o := range rest {
		switch {
		case !o.provisions && len(o.volumes) == 0:
			return []volume.Refusal{o.refuse(q)}
		case !o.provisions && len(s.stuck) > 0:
			return []volume.Refusal{refuseNoVolume(rivals(options, o)...)}
		case o.provisions && !o.alone():
			return []volume.Refusal{o.refuse(q)}
		}
	}
	if len(s.stuck) > 0 {
		return []volume.Refusal{refuseNoVolume(rivals(options, s.stuck[0])...)}
	}
	return []volume.Refusal{lacking(s.first, q)}
}

// lacking names the claim that fits no pool alone, or else all that had to share
// one.
func lacking(rest []*option, q *Question) volume.Refusal {
	var together []*Claim
	for _, o := range rest {
		if o.unchecked {
			continue
		}
		if o.shunned || !o.alone() {
			return o.refuse(q)
		}
		together = append(together, o.claim)
	}
	return refuseCapacity(together, q.view)
}

// alone reports whether the claim could be provisioned if it were the only one.
func (o *option) alone() bool {
	return o.unchecked || slices.ContainsFunc(o.segments, func(s *Segment) bool { return s.admits(o.claim.Request) })
}

// rivals are the claims that want the same volumes as the stuck one.
func rivals(options []option, stuck *option) []*Claim {
	var out []*Claim
	for i := range options {
		if slices.ContainsFunc(options[i].volumes, func(v *Volume) bool { return slices.Contains(stuck.volumes, v) }) {
			out = append(out, options[i].claim)
		}
	}
	return out
}

// refuseCapacity says what the claims ask together, and the most that any node has.
func refuseCapacity(together []*Claim, view View) volume.Refusal {
	r := volume.Refusal{Reason: volume.ReasonNotEnoughCapacity, Detail: asked(together)}
	if len(together) == 0 {
		return r
	}
	class := &together[0].Class
	if most, ok := view.MostAvailable(class); ok {
		r.Detail += fmt.Sprintf("; the freest pool of class %s has %s", class.Name, volume.FormatBytes(max(most, 0)))
	} else {
		r.Detail += "; no capacity is published for class " + class.Name
	}
	return r
}

// asked says what the claims ask for, all together. Keys are sorted, so that
// every node gives the same text.
func asked(claims []*Claim) string {
	if len(claims) == 0 {
		return ""
	}
	keys := make([]string, 0, len(claims))
	var sum int64
	for _, c := range claims {
		keys = append(keys, c.Key)
		sum = volume.AddSaturating(sum, c.Request)
	}
	slices.Sort(keys)
	if len(keys) == 1 {
		return fmt.Sprintf("claim %s asks %s", keys[0], volume.FormatBytes(sum))
	}
	return fmt.Sprintf("claims %s ask %s together", strings.Join(keys, ", "), volume.FormatBytes(sum))
}

// allowed writes a class's topologies: alternatives joined by "or", conditions
// by a comma.
func allowed(c *Class) string {
	terms := make([]string, 0, len(c.AllowedTopologies))
	for _, t := range c.AllowedTopologies {
		exprs := make([]string, 0, len(t.MatchLabelExpressions))
		for _, e := range t.MatchLabelExpressions {
			exprs = append(exprs, e.Key+"="+strings.Join(e.Values, "|"))
		}
		terms = append(terms, strings.Join(exprs, ","))
	}
	return strings.Join(terms, " or ")
}
