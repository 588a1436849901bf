package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestLine(t *testing.T) {
	cases := map[string]struct {
		reason string
		result result
		want   string
	}{
		"both":   {"three digits of a time tell enough", result{ours: 1234567, theirs: 45678 * time.Millisecond}, "bench x ours=1.23ms theirs=45.7s ratio=36999"},
		"small":  {"a small ratio has a fraction", result{ours: 200, theirs: 300}, "bench x ours=200ns theirs=300ns ratio=1.50"},
		"alone":  {"where there is nothing to beat there is no ratio", result{ours: 12345}, "bench x ours=12.3µs theirs=0s"},
		"part":   {"one measurement may have two figures", result{part: "p99", ours: 1, theirs: 2}, "bench x-p99 ours=1ns theirs=2ns ratio=2.00"},
		"sample": {"a sample says so", result{ours: 1, theirs: 2, note: "of a sample"}, "bench x ours=1ns theirs=2ns ratio=2.00 (of a sample)"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.result.line("x"); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestMedian(t *testing.T) {
	rounds := 0
	if _, err := median(t.Context(), 0, func() error { rounds++; return nil }); err != nil || rounds != 1 {
		t.Errorf("%d rounds, error %v; want one", rounds, err)
	}
	broken := errors.New("broken")
	if _, err := median(t.Context(), time.Hour, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := median(ctx, time.Hour, func() error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestAt(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	cases := map[string]struct {
		reason  string
		percent int
		of      []time.Duration
		want    time.Duration
	}{
		"one":    {"of one it is that one", 99, hundred[:1], 100},
		"middle": {"half of them are not more", 50, hundred, 50},
		"tail":   {"all but one are not more", 99, hundred, 99},
		"few":    {"of a few it is the greatest", 99, hundred[:20], 100},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := at(tc.percent, tc.of); got != tc.want {
				t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// TestExtended: pods get their nodes on both sides, and each verb took some time.
func TestExtended(t *testing.T) {
	quiet()
	got, err := extended(3, sample{ours: 4, theirs: 2})(t.Context(), options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range []string{"p50", "p99"} {
		if r := got[i]; len(got) != 2 || r.part != part || r.ours <= 0 || r.theirs <= 0 {
			t.Errorf("result %d of %d is %+v, want %s of both", i, len(got), r, part)
		}
	}
}
