package binding

import (
	"github.com/berth-storage/berth/volume"
)

// Binding is a free PersistentVolume chosen for a claim.
type Binding struct {
	Claim  *Claim
	Volume *Volume
}

// Provision is a claim to be provisioned on the node.
type Provision struct {
	Claim *Claim
	// Segment is the capacity that the claim was judged by; nil where none
	// applied: no size asked, capacity not tracked, or already selected here.
	Segment *Segment
}

// Verdict is the answer for one node: either no Refusals, and Bindings and
// Provisions cover every delayed claim, or Refusals alone.
type Verdict struct {
	Bindings   []Binding
	Provisions []Provision
	Refusals   []volume.Refusal
}

// OK reports whether the node can hold the pod's volumes.
func (v *Verdict) OK() bool { return len(v.Refusals) == 0 }

// Find judges one node (upstream: FindPodVolumes). Bound and delayed claims
// are both judged, so that a person learns of every cause at once; refusals
// come in upstream's order.
func Find(pod *Pod, node Node, view View) Verdict {
	boundRefusals, missing := checkBound(pod.Bound, node)
	verdict := findDelayed(pod.Delayed, node, view)
	refusals := append(boundRefusals, verdict.Refusals...)
	refusals = append(refusals, missing...)
	if len(refusals) > 0 {
		return Verdict{Refusals: refusals}
	}
	return verdict
}

// checkBound reports the first bound volume that the node cannot reach, or the
// first that does not exist. One is enough: naming more would split the group
// of nodes that fail for one cause.
func checkBound(claims []Claim, node Node) (affinity, missing []volume.Refusal) {
	for i := range claims {
		c := &claims[i]
		switch {
		case c.Volume == nil:
			return nil, []volume.Refusal{refuseMissing(c)}
		case !c.Volume.reachable(node):
			return []volume.Refusal{refuseAffinity(c)}, nil
		}
	}
	return nil, nil
}

// findDelayed answers for the claims whose volume is chosen with the node.
func findDelayed(claims []Claim, node Node, view View) Verdict {
	if len(claims) == 0 {
		return Verdict{}
	}
	options := make([]option, len(claims))
	for i := range claims {
		o, refusal, refused := optionsOf(&claims[i], node, view, len(claims))
		if refused {
			return Verdict{Refusals: []volume.Refusal{refusal}}
		}
		options[i] = o
	}
	if v, ok := greedy(options); ok {
		return v
	}
	s := newSearch(options)
	if v, ok := s.run(); ok {
		return v
	}
	return Verdict{Refusals: explain(options, s, view)}
}

// option is what one delayed claim may become on the node.
type option struct {
	claim *Claim
	// volumes are free volumes that fit, smallest first; at most as many as
	// the pod has claims, which is enough: of c claims, c-1 others can take at
	// most c-1 of a claim's c smallest.
	volumes []*Volume
	// provisions is true where the claim may be provisioned here, by the
	// segments if any apply.
	provisions bool
	// unchecked is true where no capacity question arises.
	unchecked bool
	segments  []Segment
	// refusal says why the claim cannot be provisioned.
	refusal volume.Refusal
}

// optionsOf gathers a claim's options. It refuses the node at once where the
// claim is tied to a place that the node is not in.
func optionsOf(c *Claim, node Node, view View, claims int) (option, volume.Refusal, bool) {
	o := option{claim: c}
	switch {
	case c.SelectedNode != "" && c.SelectedNode != node.Name:
		return o, refuseSelected(c), true
	case c.SelectedNode != "":
		// Upstream skips the static match here too: a provisioner is at work.
		// The ledger holds the claim's bytes already; asking for them again
		// would refuse a claim its own place.
		provisionable(&o, node, view)
		o.unchecked = o.provisions
		return o, volume.Refusal{}, false
	case c.Reserved != nil && c.admits(c.Reserved):
		if !c.Reserved.reachable(node) {
			return o, refuseReserved(c), true
		}
		o.volumes = []*Volume{c.Reserved}
		o.refusal = refuseNoVolume(c)
		return o, volume.Refusal{}, false
	}
	o.volumes = candidates(c, node, view, claims)
	provisionable(&o, node, view)
	return o, volume.Refusal{}, false
}

// provisionable sets how the claim could be provisioned on the node.
func provisionable(o *option, node Node, view View) {
	c := o.claim
	switch {
	case !c.Class.Provisions:
		o.refusal = refuseNoVolume(c)
	case !c.Class.Allows(node):
		o.refusal = refuseTopology(c)
	case !c.HasRequest || !c.Class.TracksCapacity:
		o.provisions, o.unchecked = true, true
	default:
		o.provisions = true
		o.segments = view.Segments(c.Class.Name, node)
	}
}
