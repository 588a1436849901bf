package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ID names one process for good: a pid alone may be given to another.
type ID struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot (proc(5), stat field 22).
	Start uint64 `json:"start"`
}

// String is pid@start.
func (id ID) String() string { return fmt.Sprintf("%d@%d", id.PID, id.Start) }

// Identify reads the identity of the process that has pid now. It satisfies
// errors.Is(err, os.ErrNotExist) when there is none.
func Identify(pid int) (ID, error) {
	st, err := readStat(pid)
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, Start: st.start}, nil
}

// Alive reports whether the process runs. One that ended and was not yet
// collected by its parent is not alive.
func (id ID) Alive() bool {
	st, err := readStat(id.PID)
	return err == nil && st.start == id.Start && st.state != 'Z' && st.state != 'X'
}

// Signal sends sig. A process that is gone is success.
func (id ID) Signal(sig syscall.Signal) error {
	fd, err := id.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling process %d: %w", id.PID, err)
	}
	return nil
}

// Wait returns when the process has ended, or with ctx's error. It works for
// any process, not only for children.
func (id ID) Wait(ctx context.Context) error {
	fd, err := id.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("waiting for the end of process %d: %w", id.PID, err)
		}
		// The descriptor wakes the poll at once; the timeout only bounds how
		// late a cancelled ctx is noticed.
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for the end of process %d: %w", id.PID, err)
		}
		if n > 0 {
			return nil
		}
	}
}

// open returns a pidfd, which stays with the process even if its pid is given
// away, or -1 when the process is gone. The start time is compared after the
// open, so that the answer is about the process that the pidfd holds.
func (id ID) open() (int, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("opening process %d: %w", id.PID, err)
	}
	if !id.Alive() {
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

type stat struct {
	state  byte
	parent int
	start  uint64
}

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = os.ErrNotExist
		}
		return stat{}, fmt.Errorf("reading the state of process %d: %w", pid, err)
	}
	// The name, in parentheses, may hold anything: fields count from its end.
	_, rest, ok := bytes.Cut(raw[max(0, bytes.LastIndexByte(raw, ')')):], []byte(") "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 20 {
		return stat{}, fmt.Errorf("reading the state of process %d: unknown form %q", pid, raw)
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return stat{}, fmt.Errorf("reading the parent of process %d: %w", pid, err)
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("reading the start time of process %d: %w", pid, err)
	}
	return stat{state: fields[0][0], parent: parent, start: start}, nil
}
