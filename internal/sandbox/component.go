package sandbox

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/host/process"
)

// restartPause is how long a component stays down before KeepRunning starts it
// again.
const restartPause = time.Second

// Process is one process of the cluster, across its restarts.
type Process struct {
	spec    process.Spec
	grace   time.Duration
	changed func()

	mu      sync.Mutex
	current *process.Process // guarded by mu; never nil after launch
	ending  bool             // guarded by mu; no restart any more
}

// launch starts a component. changed is called after each start.
func launch(spec process.Spec, grace time.Duration, changed func()) (*Process, error) {
	p := &Process{spec: spec, grace: grace, changed: changed}
	if err := p.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// Name is the process's name: etcd, node-1-agent, ….
func (p *Process) Name() string { return p.spec.Name }

// Log is the file with all that it ever wrote.
func (p *Process) Log() string { return p.spec.Log }

// ID is the identity of the process that runs, or ran last.
func (p *Process) ID() process.ID { return p.now().ID() }

// Done is closed when the process that runs now ends.
func (p *Process) Done() <-chan struct{} { return p.now().Done() }

func (p *Process) now() *process.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Start starts the process again. One that runs is an error.
func (p *Process) Start() error {
	if err := p.start(); err != nil {
		return err
	}
	// Told without the lock: whoever is told asks for the ID.
	p.changed()
	return nil
}

func (p *Process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil {
		select {
		case <-p.current.Done():
		default:
			return fmt.Errorf("starting %s: it runs as process %d", p.spec.Name, p.current.ID().PID)
		}
	}
	if p.ending {
		return fmt.Errorf("starting %s: the sandbox is ending", p.spec.Name)
	}
	started, err := process.Start(p.spec)
	if err != nil {
		return err
	}
	p.current = started
	return nil
}

// Kill ends the process at once, as kill -9 does.
func (p *Process) Kill() error { return p.now().Kill() }

// end stops it for good.
func (p *Process) end(ctx context.Context) error {
	p.mu.Lock()
	p.ending = true
	current := p.current
	p.mu.Unlock()
	return current.Stop(ctx, p.grace)
}

// keep starts the process again whenever it ends, until ctx does.
func (p *Process) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.Done():
		}
		klog.FromContext(ctx).Info("process ended, starting it again", "process", p.Name(), "exit", p.now().Exit().String())
		timer := time.NewTimer(restartPause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if err := p.Start(); err != nil {
			klog.FromContext(ctx).Error(err, "starting a process again failed", "process", p.Name())
		}
	}
}

// endedError says how a process ended and what it said last.
func (p *Process) endedError() error {
	return fmt.Errorf("%s: %s; the end of its log:\n%s", p.Name(), p.now().Exit(), tail(p.Log(), 8))
}

// tail is the last n lines of a log, indented.
func tail(path string, n int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "  (no log)"
	}
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-n):], "\n  ")
}

// probePause is the time between two looks at a server that gives no sign when
// it is ready.
const probePause = 50 * time.Millisecond

// await asks probe until it succeeds. It fails when the process ends or ctx does.
func (p *Process) await(ctx context.Context, probe func(context.Context) error) error {
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		timer := time.NewTimer(probePause)
		select {
		case <-p.Done():
			timer.Stop()
			return p.endedError()
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for %s: %w (last answer: %w)", p.Name(), context.Cause(ctx), err)
		case <-timer.C:
		}
	}
}
