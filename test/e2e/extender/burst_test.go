// Package extender_test schedules with berth-extender on a cluster of real
// processes: an unmodified kube-scheduler with nothing but the shipped
// configuration, real agents and real pools.
package extender_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/berth-storage/berth/test/seeds"
)

const (
	// burstSize is how many pods come at once; the pools fit as many, and no more.
	burstSize = 50
	// kills is how often berth-extender is killed in a round in which it is.
	kills = 3
	// jitterMax is how long after its moment it is killed at most.
	jitterMax = 300 * time.Millisecond
	// downMax is how long it is down at most each time.
	downMax = 2 * time.Second
)

// TestBurst: pods with claims come at once on pools that fit exactly them. All run;
// at no moment more claims have a node than it has room for; and no promise is left.
// In every other round berth-extender is killed, again and again.
func TestBurst(t *testing.T) {
	w := newWorld(t)
	w.fit(burstSize)
	seeds.Rounds(t, 2, func(seed uint64, r *rand.Rand) {
		w.t.Logf("seed %d", seed)
		w.overcommits() // what an earlier round left is none of this one's
		done := make(chan struct{})
		killed := make(chan int, 1)
		go func() {
			defer close(killed)
			if seed%2 == 1 {
				killed <- w.killExtender(r, done)
			}
		}()
		w.burst()
		w.awaitAll(burstSize)
		close(done)
		w.t.Logf("seed %d: berth-extender was killed %d times", seed, <-killed)
		w.checkPools()
		w.awaitNoPromise()
		for _, o := range w.overcommits() {
			t.Error(o)
		}
		w.clear()
	})
}

// killExtender kills berth-extender at random moments while pods come up, and
// starts it again. It returns how often it did.
func (w *world) killExtender(r *rand.Rand, done <-chan struct{}) int {
	p, err := w.cluster.Process(w.cluster.SchedulerName())
	if err != nil {
		w.t.Error(err)
		return 0
	}
	pause := func(d time.Duration) bool {
		select {
		case <-done:
			return false
		case <-w.t.Context().Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	n := 0
	for _, at := range moments(r) {
		for w.selected() < at {
			if !pause(time.Millisecond) {
				return n
			}
		}
		if !pause(time.Duration(r.Int64N(int64(jitterMax)))) {
			return n
		}
		if err := p.Kill(); err != nil {
			w.t.Errorf("killing berth-extender: %v", err)
			return n
		}
		n++
		<-p.Done()
		down := time.Duration(r.Int64N(int64(downMax)))
		w.t.Logf("killed when %d claims had a node; down for %s", w.selected(), down.Round(time.Millisecond))
		goOn := pause(down)
		if err := p.Start(); err != nil {
			w.t.Errorf("starting berth-extender again: %v", err)
			return n
		}
		if !goOn {
			return n
		}
	}
	return n
}

// moments are the numbers of claims with a node at which it is killed.
func moments(r *rand.Rand) []int {
	at := make([]int, kills)
	for i := range at {
		at[i] = r.IntN(burstSize)
	}
	slices.Sort(at)
	return at
}

// burst makes all claims and pods, side by side.
func (w *world) burst() {
	w.t.Helper()
	w.parallel(func(ctx context.Context, i int) error {
		name := fmt.Sprintf("burst-%02d", i)
		if err := w.makeClaim(ctx, name); err != nil {
			return err
		}
		return w.makePod(ctx, name)
	})
}
