package rig_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/berth-storage/berth/test/bench/rig"
)

func TestFigure(t *testing.T) {
	for in, want := range map[float64]string{
		0: "0", 0.04567: "0.0457", 0.9999: "1.000", 1: "1.00", 12.34: "12.3", 123.4: "123", 45678.9: "45679", -0.5: "-0.500",
	} {
		if got := rig.Figure(in); got != want {
			t.Errorf("%v is written %s, want %s", in, got, want)
		}
	}
}

func TestPrint(t *testing.T) {
	var out strings.Builder
	for _, l := range []rig.Line{
		{Name: "throughput-static-5000", Ours: 120, Theirs: 0.046, Ratio: 120 / 0.046},
		{Name: "perf-csipvs-500", Ours: 300, Theirs: 290, Ratio: 300. / 290, More: "spread=3%/4%"},
	} {
		if err := l.Print(&out); err != nil {
			t.Fatal(err)
		}
	}
	want := "bench throughput-static-5000 ours=120 theirs=0.0460 ratio=2609\n" +
		"bench perf-csipvs-500 ours=300 theirs=290 ratio=1.03 spread=3%/4%\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestRate(t *testing.T) {
	at := func(seconds ...float64) []time.Time {
		times := make([]time.Time, 0, len(seconds))
		for _, s := range seconds {
			times = append(times, time.Unix(100, 0).Add(time.Duration(s*float64(time.Second))))
		}
		return times
	}
	cases := map[string]struct {
		reason string
		times  []time.Time
		want   float64
		wrong  bool
	}{
		"even":    {reason: "the first starts the clock", times: at(0, 1, 2, 3, 4), want: 1},
		"shuffle": {reason: "the order does not matter", times: at(22, 0, 44), want: 1 / 22.},
		"one":     {reason: "one event says nothing of the time between two", times: at(3), wrong: true},
		"at once": {reason: "no time passed", times: at(3, 3), wrong: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := rig.Rate(tc.times)
			if (err != nil) != tc.wrong || math.Abs(got-tc.want) > 1e-9 {
				t.Errorf("%s: got %v, %v; want %v, an error %t", tc.reason, got, err, tc.want, tc.wrong)
			}
		})
	}
}

func TestMedianAndSpread(t *testing.T) {
	cases := map[string]struct {
		values         []float64
		median, spread float64
	}{
		"odd":  {values: []float64{5, 1, 3}, median: 3, spread: 4. / 3},
		"even": {values: []float64{4, 1, 3, 2}, median: 2.5, spread: 3 / 2.5},
		"one":  {values: []float64{7}, median: 7, spread: 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := rig.Median(tc.values); got != tc.median {
				t.Errorf("median %v, want %v", got, tc.median)
			}
			if got := rig.Spread(tc.values); got != tc.spread {
				t.Errorf("spread %v, want %v", got, tc.spread)
			}
		})
	}
	if !math.IsNaN(rig.Median(nil)) || !math.IsNaN(rig.Spread(nil)) {
		t.Error("without values there is a median or a spread")
	}
}
