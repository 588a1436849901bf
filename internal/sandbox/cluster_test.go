package sandbox

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/host/process"
)

// TestStopOrder: nobody sees a server vanish before itself.
func TestStopOrder(t *testing.T) {
	var started []*Process
	for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "node-1-agent", "berth-scheduler"} {
		started = append(started, &Process{spec: process.Spec{Name: name}})
	}
	var got [][]string
	for _, batch := range stopOrder(started) {
		var names []string
		for _, p := range batch {
			names = append(names, p.Name())
		}
		got = append(got, names)
	}
	want := [][]string{
		{"kube-scheduler", "kube-controller-manager", "node-1-agent", "berth-scheduler"},
		{"kube-apiserver"},
		{"etcd"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
