package cluster

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/volume"
)

// cause is why a node is not chosen. The set is closed; the order is that in
// which nodes are judged and causes are told.
type cause int

const (
	fits cause = iota
	causeDeleting
	causeUnschedulable
	causeNotReady
	causeTopology
	causeDriver
	causeUnpublished
	causeRoom
	causeReturned
)

func (c cause) sentence() string {
	switch c {
	case causeDeleting:
		return "node(s) are being deleted"
	case causeUnschedulable:
		return "node(s) are unschedulable"
	case causeNotReady:
		return "node(s) are not ready"
	case causeTopology:
		return "node(s) lie outside the allowedTopologies of the class"
	case causeDriver:
		return "node(s) have no driver: " + volume.ReasonDriverMissing.Sentence()
	case causeUnpublished:
		return "node(s) publish no capacity for the class"
	case causeRoom:
		return volume.ReasonNotEnoughCapacity.Sentence()
	case causeReturned:
		return "node(s) gave the claim back, and their capacity has not changed since"
	case fits:
	}
	return "node(s) fit"
}

// node is what is read of a Node and its CSINode.
type node struct {
	name   string
	labels map[string]string
	// barred is why no new volume goes there, or fits.
	barred     cause
	registered bool
}

// want is a claim that waits for a node.
type want struct {
	claim claim
	class class
	// tried are the nodes that the claim was assigned to before, with the
	// edition of what they offered then.
	tried map[string]string
	// repeat is the node of an assignment whose outcome is not known; it is
	// written again rather than decided anew.
	repeat string
}

// verdict is the node for a claim, or why there is none.
type verdict struct {
	want want
	// node is empty where none fits; edition is what it offered.
	node, edition string
	refusals      []refusal
}

// refusal is a cause with the number of nodes that it holds for.
type refusal struct {
	cause  cause
	nodes  int
	detail string
}

// placeAll decides for all waiting claims, oldest first, each with the room
// that those before it leave.
func placeAll(r *room, nodes []node, wants []want) []verdict {
	slices.SortFunc(wants, func(a, b want) int {
		return cmp.Or(
			a.claim.object.CreationTimestamp.Compare(b.claim.object.CreationTimestamp.Time),
			strings.Compare(a.claim.name.Namespace, b.claim.name.Namespace),
			strings.Compare(a.claim.name.Name, b.claim.name.Name))
	})
	verdicts := make([]verdict, 0, len(wants))
	// What may have been written already is counted before anything is decided.
	for _, w := range wants {
		if w.repeat != "" {
			r.charge(holdOf(w.claim, w.repeat))
			verdicts = append(verdicts, verdict{want: w, node: w.repeat, edition: w.tried[w.repeat]})
		}
	}
	for _, w := range wants {
		if w.repeat != "" {
			continue
		}
		v := place(r, nodes, w)
		if v.node != "" {
			r.charge(holdOf(w.claim, v.node))
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

func holdOf(c claim, node string) hold {
	return hold{claim: c.uid, class: c.class, node: node, bytes: c.bytes}
}

// place chooses, of the nodes that fit, the one with the most free space. Where
// several have the same, claims of one StatefulSet take turns.
func place(r *room, nodes []node, w want) verdict {
	var best []string
	bestFree, largest := int64(math.MinInt64), int64(0)
	counts := make(map[cause]int)
	for _, n := range nodes {
		c := judge(r, n, w)
		counts[c]++
		free, most, _ := r.most(w.class.name, n.name)
		switch {
		case c == causeRoom:
			largest = max(largest, most)
		case c != fits:
		case free > bestFree:
			bestFree, best = free, append(best[:0], n.name)
		case free == bestFree:
			best = append(best, n.name)
		}
	}
	if len(best) > 0 {
		slices.Sort(best)
		chosen := best[turn(w.claim.name)%uint64(len(best))]
		return verdict{want: w, node: chosen, edition: r.edition(w.class.name, chosen)}
	}
	v := verdict{want: w}
	for c := causeDeleting; c <= causeReturned; c++ {
		if counts[c] == 0 {
			continue
		}
		f := refusal{cause: c, nodes: counts[c]}
		if c == causeRoom {
			f.detail = fmt.Sprintf("%s asked, %s is the most that any has", volume.FormatBytes(w.claim.bytes), volume.FormatBytes(largest))
		}
		v.refusals = append(v.refusals, f)
	}
	return v
}

// judge says why a node does not fit, by the first cause that holds.
func judge(r *room, n node, w want) cause {
	_, largest, published := r.most(w.class.name, n.name)
	edition, tried := w.tried[n.name]
	switch {
	case n.barred != fits:
		return n.barred
	case !volume.Allowed(w.class.topology, n.labels):
		return causeTopology
	case !n.registered:
		return causeDriver
	case !published:
		return causeUnpublished
	case largest < w.claim.bytes:
		return causeRoom
	case tried && edition == r.edition(w.class.name, n.name):
		return causeReturned
	default:
		return fits
	}
}

// turn is a number that differs by one between neighbours of a StatefulSet,
// and begins anywhere for another set.
func turn(name types.NamespacedName) uint64 {
	set, ordinal := name.Name, uint64(0)
	if at := strings.LastIndexByte(name.Name, '-'); at >= 0 {
		if n, err := strconv.ParseUint(name.Name[at+1:], 10, 32); err == nil {
			set, ordinal = name.Name[:at], n
		}
	}
	h := fnv.New32a()
	h.Write([]byte(name.Namespace + "/" + set))
	return uint64(h.Sum32()) + ordinal
}

// text tells the user why no node fits, one line per cause.
func (v verdict) text() string {
	lines := []string{fmt.Sprintf("no node has a place for %s of class %s:", volume.FormatBytes(v.want.claim.bytes), v.want.class.name)}
	if len(v.refusals) == 0 {
		lines = append(lines, "the cluster has no node")
	}
	for _, f := range v.refusals {
		line := strconv.Itoa(f.nodes) + " " + f.cause.sentence()
		if f.detail != "" {
			line += ": " + f.detail
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// causes identifies what is told, without the figures that change with every
// volume.
func (v verdict) causes() string {
	var told strings.Builder
	for _, f := range v.refusals {
		told.WriteString(" " + strconv.Itoa(int(f.cause)))
	}
	return "none" + told.String()
}
