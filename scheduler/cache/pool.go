package cache

import (
	"slices"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// pool is one piece of storage as the ledger sees it.
type pool struct {
	// objects publish its capacity, one for each class on it and topology.
	objects map[string]capacityFacts
	// pending are claims that may land here and have no volume yet: claim
	// UID → bytes. No published capacity is known to contain them.
	pending map[string]int64
	// volumes are the pool's numbered volumes, by rising allocation. An
	// object contains those up to its own allocation.
	volumes []volumeFacts
	// settling are volumes without a number, by name.
	settling map[string]*settlement
}

// settlement holds the bytes of a volume whose driver numbers nothing. An
// object stops counting it with its next version; a deadline of the ledger bounds
// the wait for an object that never changes.
type settlement struct {
	bytes int64
	// since is the version that each object had when the volume appeared.
	since map[string]string
	pools []string
}

func newPool() *pool {
	return &pool{objects: map[string]capacityFacts{}, pending: map[string]int64{}, settling: map[string]*settlement{}}
}

func (p *pool) unused() bool {
	return len(p.objects) == 0 && len(p.pending) == 0 && len(p.volumes) == 0 && len(p.settling) == 0
}

// addVolume keeps volumes ordered. A volume is in a pool at most once.
func (p *pool) addVolume(v volumeFacts) {
	at, _ := slices.BinarySearchFunc(p.volumes, v, func(a, b volumeFacts) int {
		switch {
		case a.allocation < b.allocation:
			return -1
		case a.allocation > b.allocation:
			return 1
		}
		return 0
	})
	p.volumes = slices.Insert(p.volumes, at, v)
}

func (p *pool) removeVolume(name string) {
	p.volumes = slices.DeleteFunc(p.volumes, func(v volumeFacts) bool { return v.name == name })
}

// segment computes available(object) = capacity − Σ holds that the object does
// not contain. Anybody may make a claim of 8 EiB and select a node on it: the sum
// stops there instead of coming out as free space.
func (p *pool) segment(o capacityFacts) binding.Segment {
	var held int64
	hold := func(bytes int64) { held = volume.AddSaturating(held, max(bytes, 0)) }
	for _, bytes := range p.pending {
		hold(bytes)
	}
	if o.allocation != volume.Unnumbered {
		for i := len(p.volumes) - 1; i >= 0 && p.volumes[i].allocation > o.allocation; i-- {
			hold(p.volumes[i].bytes)
		}
	}
	for _, st := range p.settling {
		if version, counted := st.since[o.key]; counted && version == o.version {
			hold(st.bytes)
		}
	}
	return binding.Segment{
		// Both are zero at least, so that the difference is in range.
		Pool: o.pool, Capacity: o.capacity, Available: max(o.capacity, 0) - held,
		MaximumVolumeSize: o.maximum, Bounded: o.bounded, Unlimited: o.unlimited,
	}
}
