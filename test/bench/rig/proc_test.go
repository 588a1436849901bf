package rig

import (
	"testing"
	"time"
)

func TestParseUsage(t *testing.T) {
	const (
		status = "Name:\tkube-scheduler\nVmPeak:\t 1300000 kB\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\nThreads:\t9\n"
		stat   = "4711 (a) b (c) S 1 4711 4711 0 -1 4194304 1 2 3 4 1234 66 5 6 20 0 9 0 100 1 2"
	)
	got, err := parseUsage([]byte(status), []byte(stat))
	want := Usage{Resident: 100 << 20, Peak: 200 << 20, CPU: 13 * time.Second}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for reason, wrong := range map[string][2]string{
		"a kernel thread has no memory": {"Name:\tkthreadd\n", stat},
		"another unit":                  {"VmHWM:\t1 MB\nVmRSS:\t1 MB\n", stat},
		"a line that is cut":            {status, "4711 (x) S 1 2"},
		"no number":                     {status, "4711 (x) S 1 4711 4711 0 -1 4194304 1 2 3 4 x 66 5 6"},
	} {
		if got, err := parseUsage([]byte(wrong[0]), []byte(wrong[1])); err == nil {
			t.Errorf("%s: got %+v, want an error", reason, got)
		}
	}
}
