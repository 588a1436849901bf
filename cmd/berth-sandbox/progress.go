package main

import (
	"fmt"
	"io"

	"github.com/berth-storage/berth/internal/sandbox"
)

// printer writes a line for each step that is done, and for each that makes
// people wait.
func printer(out io.Writer) func(sandbox.Step) {
	return func(s sandbox.Step) {
		switch s.State {
		case sandbox.StepStarted:
		case sandbox.StepWaiting:
			fmt.Fprintf(out, "%6.1fs  …   %s\n", s.Elapsed.Seconds(), s.Name)
		case sandbox.StepDone:
			fmt.Fprintf(out, "%6.1fs  ok  %s\n", s.Elapsed.Seconds(), s.Name)
		case sandbox.StepFailed:
			fmt.Fprintf(out, "%6.1fs  --  %s failed\n", s.Elapsed.Seconds(), s.Name)
		}
	}
}
