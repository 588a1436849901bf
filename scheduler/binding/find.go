package binding

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

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
// Provisions cover every delayed claim, or Refusals alone. An Err is something
// broken and excludes all else.
type Verdict struct {
	Bindings   []Binding
	Provisions []Provision
	Refusals   []volume.Refusal
	Err        error
}

// OK reports whether the node can hold the pod's volumes.
func (v *Verdict) OK() bool { return v.Err == nil && len(v.Refusals) == 0 }

// Question is a Pod and the View to judge it by, joined once a cycle. It never
// changes; many goroutines may ask it, each with a Judge of its own.
type Question struct {
	Pod  *Pod
	view View
	// shelves and rooms belong to the delayed claims, by position.
	shelves []Shelf
	rooms   []Room
	// shun: nodes that refused a claim lately are refused; see Shun.
	shun bool
	// said are the refusals of single claims: their text is the same for every
	// node, and is made for the first.
	said *said
}

// said remembers refusals by cause and claim.
type said struct {
	mu sync.RWMutex
	by map[saidKey]volume.Refusal
}

type saidKey struct {
	cause cause
	claim *Claim
}

// refuse is the refusal of a claim for a cause, made by text the first time.
func (s *said) refuse(why cause, c *Claim, text func(*Claim) volume.Refusal) volume.Refusal {
	key := saidKey{why, c}
	s.mu.RLock()
	r, ok := s.by[key]
	s.mu.RUnlock()
	if ok {
		return r
	}
	r = text(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by[key] = r
	return r
}

// NewQuestion joins a pod and a view.
func NewQuestion(pod *Pod, view View) *Question {
	q := &Question{Pod: pod, view: view, said: &said{by: map[saidKey]volume.Refusal{}}, shelves: make([]Shelf, len(pod.Delayed)), rooms: make([]Room, len(pod.Delayed))}
	for i := range pod.Delayed {
		c := &pod.Delayed[i]
		q.shelves[i] = view.Shelf(c)
		if c.measured() {
			q.rooms[i] = view.Room(c.Class.Name)
		}
	}
	return q
}

// Node is the node to ask the question of.
func (q *Question) Node(object *corev1.Node) Node {
	node := q.view.Node(object)
	node.of = q.view
	return node
}

// measured reports whether provisioning the claim asks for published capacity.
func (c *Claim) measured() bool {
	return c.Class.Provisions && c.Class.TracksCapacity && c.HasRequest
}

// Wary reports whether some node refused a claim of the pod lately.
func (q *Question) Wary() bool {
	for i := range q.Pod.Delayed {
		if len(q.Pod.Delayed[i].Refused) > 0 {
			return true
		}
	}
	return false
}

// Shun is the question in which a node does not provision a claim that its
// driver refused lately. It is for a pod that has other nodes: those that
// refused are the last choice, not no choice.
func (q *Question) Shun() *Question {
	shunned := *q
	shunned.shun = true
	return &shunned
}

// Judge answers questions. It owns the memory that an answer needs, so that a
// pass over thousands of nodes allocates nothing. One goroutine at a time.
type Judge struct {
	options   []option
	collector collector
	packing   packing
	bindings  []Binding
	rest      []*option
	refusals  []volume.Refusal
	verdict   Verdict
}

// Find judges one node with a Judge of its own, so that the verdict is the
// caller's to keep.
func Find(q *Question, node Node) Verdict { return *new(Judge).Find(q, &node) }

// Find judges one node (upstream: FindPodVolumes). Bound and delayed claims
// are both judged, so that a person learns of every cause at once; refusals
// come in upstream's order. The verdict and what it has is valid until the next
// call.
func (j *Judge) Find(q *Question, node *Node) *Verdict {
	if node.Seen != nil && node.of != q.view {
		// Of another moment: what was seen then may be numbered otherwise now.
		node.Seen = nil
	}
	affinity, missing, err := checkBound(q, node)
	if err != nil {
		j.verdict = Verdict{Err: err}
		return &j.verdict
	}
	j.verdict = j.delayed(q, node)
	if affinity.Reason == "" && missing.Reason == "" {
		return &j.verdict
	}
	if affinity.Reason != "" {
		j.refusals = slices.Insert(append(j.refusals[:0], j.verdict.Refusals...), 0, affinity)
	} else {
		j.refusals = append(append(j.refusals[:0], j.verdict.Refusals...), missing)
	}
	j.verdict = Verdict{Refusals: j.refusals}
	return &j.verdict
}

// checkBound reports the first bound volume that the node cannot reach, or the
// first that does not exist. One is enough: naming more would split the group
// of nodes that fail for one cause.
func checkBound(q *Question, node *Node) (affinity, missing volume.Refusal, err error) {
	for i := range q.Pod.Bound {
		c := &q.Pod.Bound[i]
		if c.Volume == nil {
			return affinity, q.said.refuse(causeMissing, c, refuseMissing), nil
		}
		reached, err := c.Volume.Reachable(node)
		if err != nil {
			return affinity, missing, err
		}
		if !reached {
			return q.said.refuse(causeAffinity, c, refuseAffinity), missing, nil
		}
	}
	return affinity, missing, nil
}

// delayed answers for the claims whose volume is chosen with the node.
func (j *Judge) delayed(q *Question, node *Node) Verdict {
	claims := q.Pod.Delayed
	if len(claims) == 0 {
		return Verdict{}
	}
	if cap(j.options) < len(claims) {
		j.options = make([]option, len(claims))
	}
	j.options = j.options[:len(claims)]
	for i := range claims {
		o := &j.options[i]
		o.reset(&claims[i])
		if refusal, refused := j.gather(o, q, i, node); refused {
			return j.refused(refusal)
		}
	}
	if v, ok := j.greedy(); ok {
		return v
	}
	if len(j.options) == 1 {
		return j.refused(j.options[0].refuse(q))
	}
	s := newSearch(j.options, &j.packing)
	if v, ok := s.run(); ok {
		return v
	}
	return Verdict{Refusals: explain(j.options, s, q)}
}

// refused is the verdict with one refusal.
func (j *Judge) refused(r volume.Refusal) Verdict {
	j.refusals = append(j.refusals[:0], r)
	return Verdict{Refusals: j.refusals}
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
	// shunned: the node would do, if its driver had not refused lately.
	shunned  bool
	segments []*Segment
	// cause says why the claim cannot be provisioned; its text is made only
	// for a node that is refused.
	cause cause
}

func (o *option) reset(c *Claim) {
	*o = option{claim: c, volumes: o.volumes[:0], segments: o.segments[:0]}
}

// cause is why one claim excludes a node.
type cause int

const (
	// What keeps a claim from being provisioned.
	causeNoVolume cause = iota + 1
	causeTopology
	causeSource
	// What ties a claim to other places.
	causeMissing
	causeAffinity
	causeSelected
	causeReserved
	// What a claim that could be provisioned lacks.
	causeCapacity
	causeShunned
)

// gather fills a claim's options. It refuses the node at once where the claim
// is tied to a place that the node is not in.
func (j *Judge) gather(o *option, q *Question, i int, node *Node) (volume.Refusal, bool) {
	c := o.claim
	switch {
	case c.SelectedNode != "" && c.SelectedNode != node.Name:
		return q.said.refuse(causeSelected, c, refuseSelected), true
	case c.SelectedNode != "":
		// Upstream skips the static match here too: a provisioner is at work.
		// The ledger holds the claim's bytes already; asking for them again
		// would refuse a claim its own place.
		provisionable(o, q, i, node)
		o.unchecked = o.provisions
		return volume.Refusal{}, false
	case c.Reserved != nil && c.Admits(c.Reserved):
		if c.Reserved.Place != nil && !c.Reserved.Place.Matches(node) {
			return q.said.refuse(causeReserved, c, refuseReserved), true
		}
		o.volumes = append(o.volumes, c.Reserved)
		o.cause = causeNoVolume
		return volume.Refusal{}, false
	}
	if shelf := q.shelves[i]; shelf != nil {
		j.collector.start(c, len(q.Pod.Delayed), o.volumes)
		shelf.Ascend(node, c.Request, &j.collector)
		o.volumes = j.collector.found
	}
	provisionable(o, q, i, node)
	return volume.Refusal{}, false
}

// provisionable sets how the claim could be provisioned on the node.
func provisionable(o *option, q *Question, i int, node *Node) {
	c := o.claim
	_, refused := c.Refused[node.Name]
	switch {
	case !c.Class.Provisions:
		o.cause = causeNoVolume
	case len(c.Class.AllowedTopologies) > 0 && !c.Class.Allows(node):
		o.cause = causeTopology
	case c.Source != nil && !c.Source.Place.Matches(node):
		o.cause = causeSource
	case q.shun && refused:
		o.provisions, o.shunned = true, true
	case !c.measured():
		o.provisions, o.unchecked = true, true
	default:
		o.provisions = true
		o.segments = q.rooms[i].Segments(o.segments, node)
	}
}

// hasPlugin reports whether a comma-separated list names the plugin.
func hasPlugin(list, plugin string) bool {
	for list != "" {
		var name string
		name, list, _ = strings.Cut(list, ",")
		if name == plugin {
			return true
		}
	}
	return false
}
