package driver_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/volume"
)

// TestCapacities checks that what controller/capacity is told is what the pool
// has, and that a change of the pool is signalled.
func TestCapacities(t *testing.T) {
	w, _ := fakeWorld(t)
	source := w.d.Capacities()
	before, err := w.pool.Capacity(t.Context())
	w.must(err)
	got, err := source.Capacity(t.Context(), map[string]string{volume.ParameterFSType: "ext4"})
	if diff := cmp.Diff(before, got); err != nil || diff != "" {
		t.Errorf("the default pool: %v (-want +got)\n%s", err, diff)
	}
	got, err = source.Capacity(t.Context(), map[string]string{volume.ParameterPool: "elsewhere"})
	if diff := cmp.Diff(volume.PoolCapacity{}, got); err != nil || diff != "" {
		t.Errorf("a pool that the node lacks has nothing here: %v (-want +got)\n%s", err, diff)
	}
	if _, err := source.Capacity(t.Context(), map[string]string{"typo": "x"}); err == nil {
		t.Error("an unknown parameter was taken; no volume of the class could be made")
	}

	select {
	case <-source.Changed():
		t.Error("a change was signalled before any")
	default:
	}
	_, err = w.pool.Create(t.Context(), "v", pool.Spec{Size: pool.Unit, FSType: "ext4"})
	w.must(err)
	<-source.Changed()
	after, err := source.Capacity(t.Context(), nil)
	if err != nil || after.Allocation <= before.Allocation || after.Available >= before.Available {
		t.Errorf("after a volume: %+v, %v; want less than %+v and a higher count", after, err, before)
	}
}

// TestWatch notices what others do to the filesystem of a pool, and nothing else.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, h := fakeWorld(t)
		source := w.d.Capacities()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); source.Watch(ctx, clock.RealClock{}, time.Minute) }()
		defer func() { stop(); <-done }()
		signalled := func() bool {
			time.Sleep(time.Minute) //nolint:forbidigo // on the bubble's clock, which stands still for others
			synctest.Wait()
			select {
			case <-source.Changed():
				return true
			default:
				return false
			}
		}
		ask := func() volume.PoolCapacity {
			c, err := source.Capacity(ctx, nil)
			w.must(err)
			return c
		}
		if signalled() {
			t.Error("nobody asked, and a change is signalled")
		}
		before := ask()
		if signalled() {
			t.Error("nothing changed, and a change is signalled")
		}
		h.SetCapacity(before.Total / 2)
		if !signalled() {
			t.Error("somebody took half of the filesystem, and no change is signalled")
		}
		// Taken and given back between two ticks, with an answer in between.
		ask()
		h.SetCapacity(before.Total / 4)
		ask()
		h.SetCapacity(before.Total / 2)
		if !signalled() {
			t.Error("the last answer is not true any more, and no change is signalled")
		}
		ask()
		if signalled() {
			t.Error("one change is signalled twice")
		}
	})
}

// TestRefusalIsAChange: a pool that has less than somebody was told says so again.
func TestRefusalIsAChange(t *testing.T) {
	w, _ := fakeWorld(t)
	source := w.d.Capacities()
	c, err := w.pool.Capacity(t.Context())
	w.must(err)
	if _, err := w.pool.Create(t.Context(), "v", pool.Spec{Size: c.Available + 1, FSType: "ext4"}); err == nil {
		t.Fatal("more than there is was taken")
	}
	select {
	case <-source.Changed():
	default:
		t.Error("a refusal for want of space is not signalled")
	}
}
