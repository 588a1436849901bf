package sandbox

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/berth-storage/berth/host/process"
)

// endHolder ends the process that holds a data folder: gently, then by force.
func endHolder(ctx context.Context, id process.ID) error {
	if !id.Alive() {
		// The holder's note is not written yet, or its lock is about to go.
		pause := time.NewTimer(sweepPause)
		defer pause.Stop()
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the data folder: %w", ctx.Err())
		case <-pause.C:
			return nil
		}
	}
	if err := id.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	gentle, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	err := id.Wait(gentle)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	if err := id.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return id.Wait(ctx)
}
