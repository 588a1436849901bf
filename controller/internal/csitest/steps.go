// Package csitest is the world that the tests of the controllers act in: a
// small CSI controller with volumes of its own, an API server in memory, and
// Steps, which fails or cuts off the n-th thing that a controller does.
package csitest

import (
	"errors"
	"fmt"
)

// Mode is what happens at the chosen step.
type Mode int

const (
	// FailBefore: the step has no effect and its error is seen.
	FailBefore Mode = iota
	// FailAfter: the step takes effect, and an error is seen all the same.
	FailAfter
	// CrashBefore: the process ends before the step.
	CrashBefore
	// CrashAfter: the process ends right after the step.
	CrashAfter
)

// Modes lists all.
func Modes() []Mode { return []Mode{FailBefore, FailAfter, CrashBefore, CrashAfter} }

// String names the mode.
func (m Mode) String() string {
	return [...]string{"fail before", "fail after", "crash before", "crash after"}[m]
}

// errCrash unwinds a process that ended.
var errCrash = errors.New("the process ended")

// Steps counts what a controller does, and disturbs one step. The zero Steps
// disturbs none. It is for one goroutine.
type Steps struct {
	// At is the step to disturb, counted from 1; 0 is none.
	At   int
	Mode Mode
	// OnFault is called when the step was disturbed, before the error is seen.
	OnFault func()

	n     int
	trail []string
}

// Count is how many steps were done.
func (s *Steps) Count() int { return s.n }

// Hit reports that the chosen step came.
func (s *Steps) Hit() bool { return s.At > 0 && s.n >= s.At }

// Trail names the steps done.
func (s *Steps) Trail() []string { return s.trail }

// Do performs a step, or disturbs it; failure is the error that is seen then.
func (s *Steps) Do(name string, failure error, effect func() error) error {
	s.n++
	s.trail = append(s.trail, name)
	if s.n != s.At {
		return effect()
	}
	s.trail = append(s.trail, fmt.Sprintf("!%s", s.Mode))
	if s.Mode == FailAfter || s.Mode == CrashAfter {
		// The error of the effect is lost with the answer.
		_ = effect()
	}
	if s.OnFault != nil {
		s.OnFault()
	}
	if s.Mode == CrashBefore || s.Mode == CrashAfter {
		panic(errCrash)
	}
	return failure
}

// Survive runs f and reports whether the process ended in it.
func Survive(f func()) (crashed bool) {
	defer func() {
		if r := recover(); r != nil {
			if r != any(errCrash) {
				panic(r)
			}
			crashed = true
		}
	}()
	f()
	return false
}
