package oracle

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/test/seeds"
)

// usual is how many clusters a run looks at.
const usual = 2000

// TestOracle: on every cluster upstream answers as the model without differences,
// BerthVolumes as the model with all of them, and the extender as BerthVolumes.
func TestOracle(t *testing.T) {
	fired, said := map[plugin.Difference]int{}, map[string]int{}
	rounds := seeds.Rounds(t, usual, func(seed uint64, r *rand.Rand) {
		w := generate(r)
		found, settled, err := compare(t.Context(), w, sides(), said)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			t.Errorf("seed %d: %s", seed, report(t, w, found[0], sides()))
		}
		for _, d := range firing(settled) {
			fired[d]++
		}
	})
	tell(t, fired, said)
	for _, kind := range kinds() {
		if rounds >= usual && said[kind] == 0 {
			t.Errorf("%q was the answer on none of %d clusters: the generator is at fault", kind, rounds)
		}
	}
	for d, where := range phases() {
		if rounds >= usual && where == asked && fired[d] == 0 {
			t.Errorf("difference %s fired on none of %d clusters: the generator is at fault", d, rounds)
		}
	}
}

// report shrinks the world and tells what is left of it.
func report(t *testing.T, w *world, d disagreement, with []side) string {
	t.Helper()
	again := func(w *world) (disagreement, bool) {
		// Upstream takes any of several; more than one look finds what is rare.
		for range 3 {
			found, _, err := compare(t.Context(), w, with, map[string]int{})
			if at := slices.IndexFunc(found, d.like); err == nil && at >= 0 {
				return found[at], true
			}
		}
		return d, false
	}
	small := shrink(w, func(w *world) bool {
		_, same := again(w)
		return same
	})
	last, _ := again(small)
	return last.String() + "\n" + small.String()
}

func tell(t *testing.T, fired map[plugin.Difference]int, said map[string]int) {
	t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(said)) {
		t.Logf("compared %-60s %6d", kind, said[kind])
	}
	for _, d := range plugin.Differences() {
		if phases()[d] == asked {
			t.Logf("fired    %-60s %6d", d, fired[d])
		}
	}
}

// TestDifferences: the oracle knows what the plugin says, and nothing else.
func TestDifferences(t *testing.T) {
	if diff := cmp.Diff(plugin.Differences(), slices.Sorted(maps.Keys(phases()))); diff != "" {
		t.Errorf("(-plugin +oracle)\n%s", diff)
	}
}
