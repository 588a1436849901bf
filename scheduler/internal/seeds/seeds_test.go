package seeds

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestEach(t *testing.T) {
	cases := map[string]struct {
		reason      string
		seed, count string
		want        []uint64
	}{
		"default": {reason: "the same seeds every time", want: []uint64{1, 2}},
		"seed":    {reason: "from another seed on", seed: "7", want: []uint64{7, 8}},
		"both":    {reason: "one failing seed again", seed: "7", count: "1", want: []uint64{7}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("BERTH_SEED", tc.seed)
			t.Setenv("BERTH_COUNT", tc.count)
			var got []uint64
			numbers := map[uint64]bool{}
			n := Each(t, 2, func(seed uint64, r *rand.Rand) {
				got = append(got, seed)
				numbers[r.Uint64()] = true
			})
			if !slices.Equal(tc.want, got) || n != len(tc.want) {
				t.Errorf("%s: seeds %v, want %v", tc.reason, got, tc.want)
			}
			if len(numbers) != len(got) {
				t.Error("two seeds give one sequence")
			}
		})
	}
}
