// Package run runs a manager of controllers to its end.
package run

import (
	"context"
	"fmt"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Manager runs mgr until ctx ends, and returns when its controllers have; an
// error says that it failed, or that they did not end within its grace.
//
// If ctx ends before the caches have what the API server says, no controller has
// run yet, none will, and there is nothing to wait for. Start itself must not see
// that end: it would wait for ever, at full speed, for caches that cannot come in
// any more (controller-runtime v0.25, runnableGroup.Start). It is left waiting for
// them until the process ends.
func Manager(ctx context.Context, mgr manager.Manager) error {
	gate := &gate{Cache: mgr.GetCache(), opened: make(chan struct{})}
	if err := mgr.Add(gate); err != nil {
		return fmt.Errorf("running the controllers: %w", err)
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- mgr.Start(inner)
	}()
	select {
	case <-gate.opened:
	case err := <-ended:
		return failed(err)
	case <-ctx.Done():
		if gate.close() {
			return nil
		}
	}
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	return failed(<-ended)
}

func failed(err error) error {
	if err != nil {
		return fmt.Errorf("running the controllers: %w", err)
	}
	return nil
}

// gate stands between the manager's caches and its controllers: to the manager it
// is one more cache, and no controller begins before all of them are in.
type gate struct {
	cache.Cache
	// decided is set by whoever comes first, the caches or the end.
	decided atomic.Bool
	opened  chan struct{}
}

// close shuts the gate for good; false says that it is open already.
func (g *gate) close() bool { return g.decided.CompareAndSwap(false, true) }

// GetCache makes the manager take the gate for a cache.
func (g *gate) GetCache() cache.Cache { return g }

// Start implements manager.Runnable. The manager's own cache is started by itself.
func (g *gate) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// WaitForCacheSync implements cache.Cache. The manager asks it once.
func (g *gate) WaitForCacheSync(ctx context.Context) bool {
	if !g.Cache.WaitForCacheSync(ctx) {
		return false
	}
	if !g.decided.CompareAndSwap(false, true) {
		<-ctx.Done()
		return false
	}
	close(g.opened)
	return true
}
