// Package run runs a manager of controllers to its end.
package run

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Manager runs mgr until ctx ends, and returns when its controllers have; an
// error says that it failed, or that they did not end within its grace.
//
// If ctx ends before the caches have what the API server says, no controller has
// run yet and there is nothing to wait for. Start itself must not see that end:
// it would wait for ever, at full speed, for caches that cannot come in any more
// (controller-runtime v0.25, runnableGroup.Start). It is left waiting for them,
// until the process ends; should they come in yet, it ends then.
func Manager(ctx context.Context, mgr manager.Manager) error {
	begun := make(beginning)
	if err := mgr.Add(begun); err != nil {
		return fmt.Errorf("running the controllers: %w", err)
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- mgr.Start(inner)
	}()
	select {
	case <-begun:
	case err := <-ended:
		return failed(err)
	case <-ctx.Done():
		go func() {
			<-begun
			cancel()
		}()
		return nil
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

// beginning is closed by the manager when its caches are in, whoever leads.
type beginning chan struct{}

// Start implements manager.Runnable.
func (b beginning) Start(context.Context) error {
	close(b)
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (beginning) NeedLeaderElection() bool { return false }
