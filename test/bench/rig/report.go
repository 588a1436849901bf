package rig

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Line is one line of a benchmark's output.
type Line struct {
	// Name says what was measured: throughput-dynamic-5000.
	Name string
	// Ours and Theirs are the figures, both in the unit that the benchmark says.
	Ours, Theirs float64
	// Ratio is how many times better ours is, whichever direction is better.
	Ratio float64
	// More is written behind the ratio.
	More string
}

// Print writes `bench <name> ours=… theirs=… ratio=…`.
func (l Line) Print(w io.Writer) error {
	more := l.More
	if more != "" {
		more = " " + more
	}
	_, err := fmt.Fprintf(w, "bench %s ours=%s theirs=%s ratio=%s%s\n",
		l.Name, Figure(l.Ours), Figure(l.Theirs), Figure(l.Ratio), more)
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// Figure writes a number with three digits that count: 0.0456, 12.3, 4567.
func Figure(f float64) string {
	if f == 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Sprint(f)
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(f))))
	return fmt.Sprintf("%.*f", max(0, digits), f)
}

// Rate is how many a second came between the first and the last of times, in
// any order: the first starts the clock. Fewer than two have no rate.
func Rate(times []time.Time) (perSecond float64, err error) {
	if len(times) < 2 {
		return 0, fmt.Errorf("a rate needs two events, and there were %d", len(times))
	}
	first, last := slices.MinFunc(times, time.Time.Compare), slices.MaxFunc(times, time.Time.Compare)
	span := last.Sub(first).Seconds()
	if span == 0 {
		return 0, fmt.Errorf("a rate needs some time, and all %d events came at once", len(times))
	}
	return float64(len(times)-1) / span, nil
}

// Median is the middle of the values, or the mean of the two in the middle; NaN
// without any.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Spread is how far apart the smallest and the largest value are, as a part of
// the median.
func Spread(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return (slices.Max(values) - slices.Min(values)) / Median(values)
}
