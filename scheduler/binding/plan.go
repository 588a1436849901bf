package binding

import (
	"fmt"
	"slices"
	"strings"
)

// Bind is one PersistentVolume to reserve for one claim.
type Bind struct {
	Claim, ClaimUID   string
	Volume, VolumeUID string
}

// Select is one claim to be provisioned on the plan's node.
type Select struct {
	Claim, ClaimUID string
}

// BindPlan is what has to be written for a pod's volumes on a node. It is
// plain data: printable, comparable, and performed by scheduler/binder.
type BindPlan struct {
	Node    string
	Binds   []Bind
	Selects []Select
}

// Plan turns a verdict into its plan, ordered by claim. Claims that are
// selected for the node already stay in it: their binding is still awaited.
func Plan(node string, v Verdict) BindPlan {
	p := BindPlan{Node: node}
	for _, b := range v.Bindings {
		p.Binds = append(p.Binds, Bind{b.Claim.Key, b.Claim.UID, b.Volume.Name, b.Volume.UID})
	}
	for _, s := range v.Provisions {
		p.Selects = append(p.Selects, Select{s.Claim.Key, s.Claim.UID})
	}
	slices.SortFunc(p.Binds, func(a, b Bind) int { return strings.Compare(a.Claim, b.Claim) })
	slices.SortFunc(p.Selects, func(a, b Select) int { return strings.Compare(a.Claim, b.Claim) })
	return p
}

// Empty reports whether there is nothing to write or wait for.
func (p BindPlan) Empty() bool { return len(p.Binds) == 0 && len(p.Selects) == 0 }

// String writes one step a line.
func (p BindPlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s\n", p.Node)
	for _, s := range p.Binds {
		fmt.Fprintf(&b, "bind %s to %s\n", s.Claim, s.Volume)
	}
	for _, s := range p.Selects {
		fmt.Fprintf(&b, "provision %s\n", s.Claim)
	}
	return b.String()
}
