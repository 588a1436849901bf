package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// UntilSignal returns a context that ends with the first SIGTERM or SIGINT. At
// the second one exit is called at once, with 128 and the signal's number, as a
// shell reports it. stop gives the signals their usual meaning back.
func UntilSignal(parent context.Context, exit func(status int)) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	// Room for both, since a signal that finds no room is lost.
	arrived := make(chan os.Signal, 2)
	done := make(chan struct{})
	signal.Notify(arrived, os.Interrupt, syscall.SIGTERM)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-arrived:
				if n > 0 {
					fmt.Fprintln(os.Stderr, "a second signal: ending at once")
					exit(statusOf(s))
					return
				}
				cancel()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(arrived)
		cancel()
		close(done)
	}
}

func statusOf(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 1
}
