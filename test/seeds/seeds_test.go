package seeds

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEach(t *testing.T) {
	cases := map[string]struct {
		reason, seed, count string
		want                []uint64
	}{
		"usual": {"the same each time", "", "", []uint64{0, 1}},
		"more":  {"a soak looks at more of them", "", "2", []uint64{0, 1, 2, 3}},
		"other": {"and at others", "40", "", []uint64{40, 41}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv(envSeed, tc.seed)
			t.Setenv(envCount, tc.count)
			if diff := cmp.Diff(tc.want, slices.Collect(Each(t, 2))); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestRounds(t *testing.T) {
	t.Setenv(envSeed, "7")
	var got []uint64
	numbers := map[uint64]bool{}
	n := Rounds(t, 3, func(seed uint64, r *rand.Rand) {
		got = append(got, seed)
		numbers[r.Uint64()] = true
	})
	if diff := cmp.Diff([]uint64{7, 8, 9}, got); diff != "" || n != 3 || len(numbers) != 3 {
		t.Errorf("%d rounds with %d different numbers; seeds (-want +got)\n%s", n, len(numbers), diff)
	}
}
