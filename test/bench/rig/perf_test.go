package rig_test

import (
	"testing"

	"github.com/berth-storage/berth/test/bench/rig"
)

func TestPerfThroughput(t *testing.T) {
	const (
		duration = `{"data":{"Average":0.25},"unit":"ms","labels":{"Metric":"scheduler_pod_scheduling_duration_seconds"}}`
		rate     = `{"data":{"Average":312.5,"Perc50":300},"unit":"pods/s","labels":{"Metric":"SchedulingThroughput","Name":"x"}}`
	)
	wrap := func(items string) string { return `{"version":"v1","dataItems":[` + items + `]}` }
	got, err := rig.PerfThroughput([]byte(wrap(duration + "," + rate)))
	if err != nil || got != 312.5 {
		t.Errorf("got %v, %v; want 312.5", got, err)
	}
	for reason, raw := range map[string]string{
		"a run that failed measured nothing": wrap(""),
		"another figure":                     wrap(duration),
		"two workloads in one run":           wrap(rate + "," + rate),
		"no pod was placed":                  wrap(`{"data":{"Average":0},"labels":{"Metric":"SchedulingThroughput"}}`),
		"no JSON":                            "PASS",
	} {
		if got, err := rig.PerfThroughput([]byte(raw)); err == nil {
			t.Errorf("%s: got %v, want an error", reason, got)
		}
	}
}
