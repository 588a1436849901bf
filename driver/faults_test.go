package driver_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/volume"
)

var errFault = errors.New("injected fault")

// TestEveryCallFailsOnce takes a volume through its life, over and over, and has
// each call to the machine fail once, in turn: before its effect or after it.
// However the CO goes on, nothing may be left at the end, and what the CO was
// told of must work.
func TestEveryCallFailsOnce(t *testing.T) {
	kinds := map[string]*csi.VolumeCapability{"mount": mountCap("ext4"), "block": blockCap()}
	arms := map[string]func(h *host.Fake, n int){
		"before": func(h *host.Fake, n int) { h.FailAt(n, errFault) },
		"after":  func(h *host.Fake, n int) { h.FailAfter(n, errFault) },
	}
	for kind, capability := range kinds {
		for when, arm := range arms {
			for name, goOn := range map[string]func(*life, step){
				"retry":             retry,
				"restart and retry": func(l *life, s step) { l.w.restart(); retry(l, s) },
				"reboot and retry":  rebootAndRetry,
				"give up":           func(*life, step) {},
				"restart, give up":  func(l *life, _ step) { l.w.restart() },
			} {
				givesUp := name == "give up" || name == "restart, give up"
				t.Run(fmt.Sprintf("%s/%s/%s", kind, when, name), func(t *testing.T) {
					failEach(t, capability, arm, goOn, givesUp)
				})
			}
		}
	}
}

func retry(l *life, s step) { l.w.must(s.call(l.w.t.Context())) }

// rebootAndRetry loses what is in the kernel. The CO goes through the steps
// again that the node forgot.
func rebootAndRetry(l *life, s step) {
	l.w.host.(*host.Fake).Reboot()
	l.w.restart()
	for _, again := range l.up() {
		isNodes := again.name == "NodeStageVolume" || again.name == "NodePublishVolume"
		if again.name == s.name || s.name == "NodeUnpublishVolume" || s.name == "NodeUnstageVolume" || s.name == "DeleteVolume" {
			break
		}
		if isNodes {
			l.w.must(again.call(l.w.t.Context()))
		}
	}
	retry(l, s)
}

func failEach(t *testing.T, capability *csi.VolumeCapability, arm func(*host.Fake, int), goOn func(*life, step), givesUp bool) {
	for n := 1; ; n++ {
		h := host.NewFake()
		w := newWorld(t, h)
		l := &life{w: w, cap: capability, size: 8 * volume.MiB}
		arm(h, n)
		before := h.Calls()
		failed := runLife(l, goOn, givesUp)
		calls := h.Calls() - before
		h.Heal()
		w.clean(fmt.Sprintf("after the fault in call %d (%s)", n, failed))
		if t.Failed() {
			return
		}
		if failed == "" {
			if n <= calls {
				t.Fatalf("call %d of %d failed and no step did", n, calls)
			}
			return
		}
	}
}

// runLife returns the name of the step that failed.
func runLife(l *life, goOn func(*life, step), givesUp bool) (failed string) {
	ctx := l.w.t.Context()
	run := func(steps []step) {
		for _, s := range steps {
			err := s.call(ctx)
			if err == nil {
				continue
			}
			failed = s.name
			if code := status.Code(err); code == codes.OK || code == codes.Unknown {
				l.w.t.Errorf("%s: the code of %v is %v", s.name, err, code)
			}
			goOn(l, s)
			if givesUp && s.name != "NodeUnpublishVolume" && s.name != "NodeUnstageVolume" && s.name != "DeleteVolume" {
				return
			}
			if givesUp {
				retry(l, s)
			}
		}
	}
	run(l.up())
	if l.id == "" {
		// The CO gave up before it knew the id; it repeats CreateVolume to learn
		// it, since it owes a DeleteVolume.
		l.w.must(l.create(ctx))
	}
	run(l.down())
	return failed
}
