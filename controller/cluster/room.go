package cluster

import (
	"math"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/volume"
)

// offer is what one CSIStorageCapacity offers to volumes of a class on nodes.
type offer struct {
	key, version, class string
	// pool is the pool's UUID; an object without a number is a pool of its own.
	pool       string
	allocation int64
	// capacity is in bytes; math.MaxInt64 where only a maximum is published.
	capacity int64
	// maximum is the largest volume, in bytes; unbounded is math.MaxInt64.
	maximum int64
	// nodes can reach the pool.
	nodes []string
}

// made is a PersistentVolume: whose it is, and which of its pool's allocations.
type made struct {
	claim      types.UID
	pool       string
	allocation int64
	bytes      int64
}

// hold is space promised to a claim that has no volume yet.
type hold struct {
	claim       types.UID
	class, node string
	bytes       int64
}

// room knows what every offer really has left:
//
//	free(offer) = capacity − holds that may land on its pool
//	                       − volumes of the pool numbered above the offer
//
// It is the arithmetic of the scheduler's capacity ledger, computed anew for
// each round.
type room struct {
	// offers by class and node.
	offers map[string]map[string][]offer
	// pending bytes by pool, and newer bytes by offer.
	pending map[string]int64
	newer   map[string]int64
}

func newRoom(offers []offer, volumes []made, holds []hold) *room {
	r := &room{
		offers:  make(map[string]map[string][]offer),
		pending: make(map[string]int64), newer: make(map[string]int64),
	}
	known := make(map[types.UID]bool, len(volumes))
	byPool := make(map[string][]made)
	for _, v := range volumes {
		if v.claim != "" {
			known[v.claim] = true
		}
		if v.allocation != volume.Unnumbered {
			byPool[v.pool] = append(byPool[v.pool], v)
		}
	}
	for _, o := range offers {
		if r.offers[o.class] == nil {
			r.offers[o.class] = make(map[string][]offer)
		}
		for _, n := range o.nodes {
			r.offers[o.class][n] = append(r.offers[o.class][n], o)
		}
		if o.allocation == volume.Unnumbered {
			continue
		}
		for _, v := range byPool[o.pool] {
			if v.allocation > o.allocation {
				r.newer[o.key] = volume.AddSaturating(r.newer[o.key], v.bytes)
			}
		}
	}
	for _, h := range holds {
		if !known[h.claim] {
			r.charge(h)
		}
	}
	return r
}

// charge counts a hold against every pool that its class offers its node, as
// the driver chooses among them.
func (r *room) charge(h hold) {
	charged := make(map[string]bool)
	for _, o := range r.offers[h.class][h.node] {
		if !charged[o.pool] {
			charged[o.pool] = true
			r.pending[o.pool] = volume.AddSaturating(r.pending[o.pool], h.bytes)
		}
	}
}

// free is what an offer has left, in bytes; below zero where more is promised
// than there is.
func (r *room) free(o offer) int64 {
	taken := volume.AddSaturating(r.pending[o.pool], r.newer[o.key])
	return o.capacity - taken
}

// most is the most that one volume of the class can still get on the node,
// published is false where the class offers the node nothing at all.
func (r *room) most(class, node string) (free, largest int64, published bool) {
	free, largest = math.MinInt64, math.MinInt64
	for _, o := range r.offers[class][node] {
		free = max(free, r.free(o))
		largest = max(largest, min(r.free(o), o.maximum))
		published = true
	}
	return free, largest, published
}

// edition tells one state of what a class offers a node from another.
func (r *room) edition(class, node string) string {
	var all strings.Builder
	for _, o := range r.offers[class][node] {
		all.WriteString(o.key + "@" + o.version + " ")
	}
	return all.String()
}
