package volume

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Sizes are int64 bytes everywhere, as in CSI's CapacityRange.
const (
	KiB int64 = 1 << 10
	MiB int64 = 1 << 20
	GiB int64 = 1 << 30
	TiB int64 = 1 << 40
)

// RoundUp is the smallest multiple of unit that is at least n. A sum over the
// largest int64 saturates at the largest multiple below it. unit is at least 1;
// n below 0 counts as 0.
func RoundUp(n, unit int64) int64 {
	if n <= 0 {
		return 0
	}
	rest := n % unit
	switch {
	case rest == 0:
		return n
	case n > math.MaxInt64-(unit-rest):
		return math.MaxInt64 - math.MaxInt64%unit
	default:
		return n + unit - rest
	}
}

// AddSaturating is a+b for a, b ≥ 0, or the largest int64 where that overflows.
func AddSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Bytes is a quantity in whole bytes, rounded up: 0 at least, and the largest
// int64 where it does not fit. Quantity.Value is 0 or below there (100E, 2^63),
// and anybody may make a claim of that size.
func Bytes(q resource.Quantity) int64 {
	if q.CmpInt64(math.MaxInt64) >= 0 {
		return math.MaxInt64
	}
	return max(q.Value(), 0) //nolint:forbidigo // it is below 2^63 here
}

// FormatBytes writes a size for a person: the largest binary unit that leaves
// at least 1, with one decimal unless it is whole. "8 GiB", "1.5 MiB", "12 B".
func FormatBytes(n int64) string {
	if n < 0 {
		// -MinInt64 overflows; its text differs from that of MinInt64+1 in no digit shown.
		return "-" + FormatBytes(-max(n, math.MinInt64+1))
	}
	for _, u := range []struct {
		size int64
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if n < u.size {
			continue
		}
		if n%u.size == 0 {
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		}
		return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
	}
	return fmt.Sprintf("%d B", n)
}
