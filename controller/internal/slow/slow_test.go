package slow

import (
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

func TestHolds(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	h := New(clock, time.Minute)
	if left := h.Left("u", "a"); left != 0 {
		t.Errorf("nothing was refused: %s", left)
	}
	if pause := h.Hold("u", "a"); pause != time.Minute {
		t.Errorf("pause %s", pause)
	}
	clock.SetTime(time.Unix(1020, 0))
	if left := h.Left("u", "a"); left != 40*time.Second {
		t.Errorf("left %s", left)
	}
	if h.Left("u", "b") != 0 || h.Left("v", "a") != 0 {
		t.Error("another request, or another object's, rests too")
	}
	clock.SetTime(time.Unix(1061, 0))
	if left := h.Left("u", "a"); left != 0 {
		t.Errorf("after the interval: %s", left)
	}
	h.Hold("u", "a")
	h.Forget("u")
	if left := h.Left("u", "a"); left != 0 {
		t.Errorf("forgotten: %s", left)
	}
}
