package binding

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-storage/berth/volume"
)

// Attach is the question of attach limits on one node.
type Attach struct {
	// Limits is how many volumes of each driver the node can attach; a driver
	// that is missing has no limit. From CSINode, as old as its informer.
	Limits map[string]int64
	// Present are the volumes of the pods on the node, assumed pods included:
	// the scheduler's own snapshot, so that preemption sees what eviction frees.
	Present map[volume.Key]struct{}
	// Wanted are the pod's own volumes. A volume in both sets counts once.
	Wanted map[volume.Key]struct{}
}

// CheckAttach refuses where the pod's new volumes would pass a driver's limit.
func CheckAttach(a Attach) []volume.Refusal {
	added := map[string]int64{}
	for k := range a.Wanted {
		if _, limited := a.Limits[k.Driver]; !limited {
			continue
		}
		if _, there := a.Present[k]; !there {
			added[k.Driver]++
		}
	}
	if len(added) == 0 {
		return nil
	}
	used := map[string]int64{}
	for k := range a.Present {
		used[k.Driver]++
	}
	var out []volume.Refusal
	for driver, n := range added {
		if used[driver]+n > a.Limits[driver] {
			out = append(out, volume.Refusal{
				Reason: volume.ReasonAttachLimit,
				Detail: fmt.Sprintf("driver %s, %d more asked", driver, n),
			})
		}
	}
	slices.SortFunc(out, func(a, b volume.Refusal) int { return cmp.Compare(a.Detail, b.Detail) })
	return out
}
