package binding

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-storage/berth/volume"
)

// Occupancy is what is attached to one node, or will be: the volumes of its
// pods, assumed ones included, and those of its VolumeAttachments, each once.
type Occupancy interface {
	// Has reports whether the volume is among them.
	Has(k volume.Key) bool
	// Used is how many of them the driver serves.
	Used(driver string) int64
}

// Limit is how many volumes of a driver the node can attach, and false for a
// driver without limit.
type Limit func(driver string) (int64, bool)

// CheckAttach refuses where the pod's new volumes would pass a driver's limit.
// wanted are the pod's own volumes, each once; one that the node has adds
// nothing.
func CheckAttach(wanted []volume.Key, limit Limit, there Occupancy) []volume.Refusal {
	var out []volume.Refusal
	for i, k := range wanted {
		// Each driver is judged at its first volume.
		if slices.ContainsFunc(wanted[:i], func(o volume.Key) bool { return o.Driver == k.Driver }) {
			continue
		}
		most, limited := limit(k.Driver)
		if !limited {
			continue
		}
		var added int64
		for _, o := range wanted[i:] {
			if o.Driver == k.Driver && !there.Has(o) {
				added++
			}
		}
		if added > 0 && there.Used(k.Driver)+added > most {
			out = append(out, volume.Refusal{
				Reason: volume.ReasonAttachLimit,
				Detail: fmt.Sprintf("driver %s, %d more asked", k.Driver, added),
			})
		}
	}
	slices.SortFunc(out, func(a, b volume.Refusal) int { return cmp.Compare(a.Detail, b.Detail) })
	return out
}
