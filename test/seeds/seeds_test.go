package seeds

import (
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
