package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// result is one measurement of both sides.
type result struct {
	// part tells the results of one measurement apart; empty for the only one.
	part string
	ours time.Duration
	// theirs is 0 where the other side has nothing of the kind.
	theirs time.Duration
	// note says how theirs was taken, if not as ours.
	note string
}

// line is the result as it is printed.
func (r result) line(name string) string {
	if r.part != "" {
		name += "-" + r.part
	}
	line := fmt.Sprintf("bench %s ours=%s theirs=%s", name, short(r.ours), short(r.theirs))
	if r.theirs > 0 && r.ours > 0 {
		line += " ratio=" + digits(float64(r.theirs)/float64(r.ours))
	}
	if r.note != "" {
		line += " (" + r.note + ")"
	}
	return line
}

// short rounds to three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

func digits(ratio float64) string {
	if ratio < 10 {
		return fmt.Sprintf("%.2f", ratio)
	}
	return fmt.Sprintf("%.0f", ratio)
}

// median runs round for at least so long, and once in any case, and returns the
// median of its times. The first round of several is left out: it finds what the
// others find in caches.
func median(ctx context.Context, least time.Duration, round func() error) (time.Duration, error) {
	runtime.GC()
	var times []time.Duration
	for began := time.Now(); len(times) == 0 || time.Since(began) < least; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		at := time.Now()
		if err := round(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(at))
	}
	if len(times) > 1 {
		times = times[1:]
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}
