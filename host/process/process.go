package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// Spec says what to start.
type Spec struct {
	// Name is for people: logs and errors.
	Name string
	// Path is the program, Args its arguments without the program's name.
	Path string
	Args []string
	// Env is the whole environment; nil means the caller's. Marker is added.
	Env []string
	// Marker is KEY=value, added to the environment so that Marked finds the
	// process.
	Marker string
	// Dir is the working folder; empty means the caller's.
	Dir string
	// Log is the file that standard output and error are appended to; empty
	// means that they are discarded.
	Log string
	// Files become descriptors 3, 4, … of the process.
	Files []*os.File
	// Namespaces are CLONE_NEW… flags.
	Namespaces uintptr
	// Detached processes live in a session of their own and survive the caller.
	// All others die with it, and form a process group of their own, so that a
	// Ctrl-C in the caller's terminal does not reach them: the caller decides
	// the order in which they end.
	Detached bool
}

// Exit is how a process ended.
type Exit struct {
	// Code is the exit status, or 128 plus the signal's number.
	Code int
	// Signal ended the process; 0 for an exit.
	Signal syscall.Signal
	// At is when its end was seen.
	At time.Time
}

// String is for people.
func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("ended by %s", e.Signal)
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Process is a started child.
type Process struct {
	spec Spec
	id   ID
	cmd  *exec.Cmd
	done chan struct{}
	exit Exit // written before done is closed
}

// Start starts a process and returns when it is running.
func Start(spec Spec) (*Process, error) {
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx // it outlives the call; Kill and Stop end it
	cmd.Env = spec.Env
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	if spec.Marker != "" {
		cmd.Env = append(slices.Clip(cmd.Env), spec.Marker)
	}
	cmd.Dir = spec.Dir
	cmd.ExtraFiles = spec.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: spec.Namespaces}
	if spec.Detached {
		cmd.SysProcAttr.Setsid = true
	} else {
		cmd.SysProcAttr.Setpgid = true
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if spec.Log != "" {
		log, err := os.OpenFile(spec.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("opening the log of %s: %w", spec.Name, err)
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
	}
	p := &Process{spec: spec, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	return p, nil
}

// run starts the child and waits for it on one OS thread: the parent-death
// signal is sent when the thread that forked ends, not the process.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	// The child stays at least a zombie until Wait below, so its pid is its own.
	id, err := Identify(p.cmd.Process.Pid)
	if err != nil {
		err = errors.Join(err, p.cmd.Process.Kill(), ignoreExit(p.cmd.Wait()))
		started <- err
		return
	}
	p.id = id
	started <- nil
	// The error says no more than the state, which exitOf reads.
	_ = p.cmd.Wait()
	p.exit = exitOf(p.cmd.ProcessState)
	close(p.done)
}

func ignoreExit(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

func exitOf(state *os.ProcessState) Exit {
	e := Exit{Code: -1, At: time.Now()}
	if state == nil {
		return e
	}
	e.Code = state.ExitCode()
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
		e.Code = 128 + int(ws.Signal())
	}
	return e
}

// ID is the process's identity.
func (p *Process) ID() ID { return p.id }

// Name is the name from the Spec.
func (p *Process) Name() string { return p.spec.Name }

// Log is the log file from the Spec.
func (p *Process) Log() string { return p.spec.Log }

// Done is closed when the process has ended and was collected.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how it ended; valid once Done is closed.
func (p *Process) Exit() Exit {
	<-p.done
	return p.exit
}

// Signal sends sig. A process that is gone is success.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signalling %s: %w", p.spec.Name, err)
	}
	return nil
}

// Stop asks the process to end, ends it when grace has passed, and returns when
// it is gone. When ctx ends first, it is killed at once.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.Kill()
}

// Kill ends the process at once and returns when it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}
