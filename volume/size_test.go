package volume

import (
	"math"
	"math/big"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// FuzzRoundUp holds RoundUp against the same sum in big integers.
func FuzzRoundUp(f *testing.F) {
	for _, n := range []int64{-1, 0, 1, 4095, 4096, 4097, math.MaxInt64, math.MaxInt64 - 1} {
		f.Add(n, int64(4096))
	}
	f.Fuzz(func(t *testing.T, n, unit int64) {
		if unit < 1 {
			return
		}
		got := RoundUp(n, unit)
		u := big.NewInt(unit)
		want := new(big.Int).Add(big.NewInt(max(n, 0)), new(big.Int).Sub(u, big.NewInt(1)))
		want.Div(want, u).Mul(want, u)
		if !want.IsInt64() {
			want = new(big.Int).Mul(new(big.Int).Div(big.NewInt(math.MaxInt64), u), u)
		}
		if got != want.Int64() {
			t.Fatalf("RoundUp(%d, %d) = %d, want %s", n, unit, got, want)
		}
	})
}

func TestFormatBytes(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     int64
		want   string
	}{
		"zero":     {"no unit is too large for nothing", 0, "0 B"},
		"bytes":    {"below a KiB", 1023, "1023 B"},
		"whole":    {"whole units carry no decimal", 8 * GiB, "8 GiB"},
		"fraction": {"one decimal otherwise", MiB + MiB/2, "1.5 MiB"},
		"negative": {"an overcommitted pool", -3 * MiB, "-3 MiB"},
		"least":    {"does not overflow", math.MinInt64, "-8388608.0 TiB"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := FormatBytes(tc.in); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestBytes(t *testing.T) {
	cases := map[string]struct {
		reason string
		want   int64
	}{
		"1Gi":                  {"as it says", GiB},
		"1500m":                {"a part of a byte needs a whole one", 2},
		"0":                    {"nothing", 0},
		"-1Gi":                 {"no API takes it, and nothing is less than nothing", 0},
		"9223372036854775807":  {"the largest that fits", math.MaxInt64},
		"9223372036854775808":  {"one more is not the least of all numbers", math.MaxInt64},
		"8Ei":                  {"nor in another unit", math.MaxInt64},
		"100E":                 {"nor 0, as Quantity.Value has it", math.MaxInt64},
		"1e30":                 {"nor with an exponent", math.MaxInt64},
		"-9223372036854775809": {"below all numbers is nothing", 0},
	}
	for in, tc := range cases {
		t.Run(in, func(t *testing.T) {
			if got := Bytes(resource.MustParse(in)); got != tc.want {
				t.Errorf("%s: got %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

func TestAddSaturating(t *testing.T) {
	if got := AddSaturating(math.MaxInt64, 1); got != math.MaxInt64 {
		t.Errorf("overflow: got %d", got)
	}
	if got := AddSaturating(2, 3); got != 5 {
		t.Errorf("plain sum: got %d", got)
	}
}
