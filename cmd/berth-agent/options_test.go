package main

import (
	"strings"
	"testing"

	"github.com/berth-storage/berth/internal/daemon"
)

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*options)
		// want is in the error; empty wants none.
		want string
	}{
		"good":      {"the defaults and a node's name", func(*options) {}, ""},
		"no node":   {"an agent without a node would act for none", func(o *options) { o.nodeName = "" }, "--node-name"},
		"mode":      {"the message says what exists", func(o *options) { o.mode = "kubletless" }, `"standalone"`},
		"kubelet":   {"the DaemonSet's mode is refused in words, not as a typing error", func(o *options) { o.mode = "kubelet" }, "not built yet"},
		"host root": {"tools are looked for below it", func(o *options) { o.hostRoot = "host" }, "--host-root"},
		"relative":  {"a path must not depend on the working folder", func(o *options) { o.poolDir = "pool" }, "--pool-dir"},
		"long root": {"a socket's path is bounded by the kernel", func(o *options) { o.root = "/" + strings.Repeat("x", 80) }, "choose a shorter folder"},
		"reserve":   {"sizes are quantities", func(o *options) { o.poolReserve = "ten" }, "10Gi"},
		"below 0":   {"a reserve below 0 would promise what is not there", func(o *options) { o.poolReserve = "-1Gi" }, "--pool-reserve"},
		"volumes":   {"0 is no limit, less is a mistake", func(o *options) { o.maxVolumes = -1 }, "--max-volumes"},
		"label":     {"a label key that no Node can have would wait for ever", func(o *options) { o.topologyLabels = []string{"a b"} }, "--topology-labels"},
		"claims":    {"the message says what exists", func(o *options) { o.claimWatch = "mine" }, `"labelled"`},
		"long name": {"a label cannot name this node", func(o *options) { o.claimWatch, o.nodeName = "labelled", strings.Repeat("n", 64) }, "--claim-watch"},
		"namespace": {"no object can be in such a namespace", func(o *options) { o.namespace = "Berth System" }, "--namespace"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := problems(tc.change)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("%s: got %v", tc.reason, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("%s: got %v, want an error with %q", tc.reason, err, tc.want)
			}
		})
	}
	err := problems(func(o *options) { o.nodeName, o.mode, o.poolDir = "", "x", "y" })
	for _, flag := range []string{"--node-name", "--mode", "--pool-dir"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("every mistake is named at once: want %s in %v", flag, err)
		}
	}
}

func problems(change func(*options)) error {
	o := newOptions()
	o.nodeName = "edge-1"
	change(o)
	var p daemon.Problems
	o.validate(&p)
	return p.Err()
}
