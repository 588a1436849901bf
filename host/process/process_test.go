package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be a parent that a test kills.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "parent" {
		parent(os.Args[2])
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func startShell(t *testing.T, spec Spec, script string) *Process {
	t.Helper()
	spec.Name, spec.Path, spec.Args = t.Name(), "/bin/sh", []string{"-c", script}
	p, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestExitAndLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	for range 2 {
		p := startShell(t, Spec{Log: log, Env: []string{"A=b"}, Marker: "MARK=here", Dir: "/"}, "echo $A $MARK $PWD; echo err >&2; exit 3")
		if exit := p.Exit(); exit.Code != 3 || exit.Signal != 0 {
			t.Errorf("exit: %+v", exit)
		}
		if p.ID().Alive() {
			t.Error("a process that ended is alive")
		}
	}
	got, err := os.ReadFile(log)
	if want := strings.Repeat("b here /\nerr\n", 2); err != nil || string(got) != want {
		t.Errorf("the log holds %q, %v; want %q", got, err, want)
	}
}

func TestStop(t *testing.T) {
	cases := map[string]struct {
		reason, script string
		grace          time.Duration
		want           syscall.Signal
	}{
		"gentle":   {"SIGTERM is enough", "touch ready; sleep 1000", time.Minute, syscall.SIGTERM},
		"stubborn": {"who ignores SIGTERM is killed", "trap '' TERM; touch ready; while true; do sleep 1000; done", time.Millisecond, syscall.SIGKILL},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := startShell(t, Spec{Dir: dir}, tc.script)
			awaitFile(t, filepath.Join(dir, "ready"))
			if err := p.Stop(t.Context(), tc.grace); err != nil {
				t.Fatal(err)
			}
			if exit := p.Exit(); exit.Signal != tc.want || exit.Code != 128+int(tc.want) {
				t.Errorf("%s: %+v", tc.reason, exit)
			}
			// Again, on one that is gone.
			if err := p.Stop(t.Context(), tc.grace); err != nil {
				t.Error(err)
			}
			killGroup(t, p)
		})
	}
}

// killGroup ends what the shell left in its process group.
func killGroup(t *testing.T, p *Process) {
	t.Helper()
	if err := syscall.Kill(-p.ID().PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
}

func TestIdentity(t *testing.T) {
	p := startShell(t, Spec{}, "exec sleep 1000")
	id, err := Identify(p.ID().PID)
	if err != nil || id != p.ID() || !id.Alive() {
		t.Fatalf("Identify: %s, %v, alive %t; want %s", id, err, id.Alive(), p.ID())
	}
	// The same pid with another start time is another process.
	other := ID{PID: id.PID, Start: id.Start + 1}
	if other.Alive() {
		t.Error("a process with another start time is alive")
	}
	if err := other.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := other.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if !id.Alive() {
		t.Error("a signal for another process reached this one")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := id.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for one that runs: %v", err)
	}
	if err := id.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := id.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := Identify(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such process: %v", err)
	}
}

func TestMarked(t *testing.T) {
	marker := "BERTH_PROCESS_TEST=" + t.TempDir()
	// The outer shell's child inherits the marker; a longer value is another marker.
	outer := startShell(t, Spec{Marker: marker, Detached: true}, "sleep 1000 & wait")
	other := startShell(t, Spec{Marker: marker + "x"}, "exec sleep 1000")
	awaitCount(t, marker, 2)
	killed, err := KillMarked(t.Context(), marker)
	if err != nil || killed < 2 {
		t.Errorf("killed %d, %v", killed, err)
	}
	if left, err := Marked(marker); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if outer.ID().Alive() || !other.ID().Alive() {
		t.Errorf("alive: the marked %t, the other %t", outer.ID().Alive(), other.ID().Alive())
	}
}

func awaitCount(t *testing.T, marker string, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d processes with %s", n, marker), func() bool {
		ids, err := Marked(marker)
		return err == nil && len(ids) == n
	})
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	await(t, path, func() bool { _, err := os.Stat(path); return err == nil })
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for !done() {
		select {
		case <-deadline.C:
			t.Fatalf("%s: not there in time", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// parent starts a child and does what ends OS threads, then waits to be killed:
// a goroutine that ends while locked to its thread takes the thread with it. It
// returns only if something failed.
func parent(dir string) {
	if _, err := Start(Spec{Name: "child", Path: "/bin/sh", Args: []string{"-c", "touch " + dir + "/child; exec sleep 1000"}, Marker: "BERTH_PROCESS_TEST=" + dir}); err != nil {
		return
	}
	for range 100 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
		}()
		<-done
	}
	if err := os.WriteFile(filepath.Join(dir, "threads"), nil, 0o600); err != nil {
		return
	}
	select {}
}

// TestDiesWithItsParent holds both sides: the end of threads does not end a
// child, the end of the process does.
func TestDiesWithItsParent(t *testing.T) {
	dir := t.TempDir()
	p, err := Start(Spec{Name: "parent", Path: "/proc/self/exe", Args: []string{"parent", dir}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	awaitFile(t, filepath.Join(dir, "threads"))
	awaitFile(t, filepath.Join(dir, "child"))
	ids, err := Marked("BERTH_PROCESS_TEST=" + dir)
	if err != nil || len(ids) != 1 {
		t.Fatalf("the child does not live: %v, %v", ids, err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := ids[0].Wait(ctx); err != nil {
		t.Errorf("the child outlives its parent: %v", err)
	}
}

func TestStartErrors(t *testing.T) {
	if _, err := Start(Spec{Name: "x", Path: "/no/such/program"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
	if _, err := Start(Spec{Name: "x", Path: "/bin/true", Log: "/no/such/folder/log"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder for the log: %v", err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := LockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockFile(path); !errors.Is(err, ErrLocked) {
		t.Errorf("a second holder: %v", err)
	}
	// A holder that removes the file before it lets go leaves nothing to be
	// locked by mistake.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := LockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Unlock(), second.Unlock()); err != nil {
		t.Error(err)
	}
	third, err := LockFile(path)
	if err != nil {
		t.Fatalf("after the end of the second: %v", err)
	}
	if err := third.Unlock(); err != nil {
		t.Error(err)
	}
}
