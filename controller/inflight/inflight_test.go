package inflight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		if err := s.Wait(context.Background()); err != nil {
			t.Errorf("nothing is in flight: %v", err)
		}
		endOne, endTwo := s.Begin(), s.Begin()
		done := false
		go func() {
			if err := s.Wait(context.Background()); err != nil {
				t.Error(err)
			}
			done = true
		}()
		synctest.Wait()
		endLater := s.Begin()
		endOne()
		endOne() // without effect
		synctest.Wait()
		if done {
			t.Error("one of two is still in flight")
		}
		endTwo()
		synctest.Wait()
		if !done {
			t.Error("a later one prolonged the wait")
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that was given up is no success: %v", err)
		}
		endLater()
		if err := s.Wait(ctx); err != nil {
			t.Errorf("nothing is in flight any more: %v", err)
		}
	})
}
