package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Marked lists the processes whose environment holds marker ("KEY=value",
// compared whole), the caller and its ancestors excepted.
func Marked(marker string) ([]ID, error) {
	spared, err := lineage(os.Getpid())
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var ids []ID
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || spared[pid] {
			continue
		}
		// Identity first: if the pid changes hands between the two reads, the
		// identity is of a process that is gone, and a signal to it does nothing.
		id, err := Identify(pid)
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !holds(env, marker) {
			continue
		}
		if id.Alive() {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// KillMarked ends all Marked processes with SIGKILL and waits for them. It looks
// again until none is found, since a process may have forked meanwhile. It
// returns how many it ended.
func KillMarked(ctx context.Context, marker string) (int, error) {
	killed := 0
	for {
		ids, err := Marked(marker)
		if err != nil || len(ids) == 0 {
			return killed, err
		}
		for _, id := range ids {
			if err := id.Signal(syscall.SIGKILL); err != nil {
				return killed, err
			}
		}
		for _, id := range ids {
			if err := id.Wait(ctx); err != nil {
				return killed, err
			}
			killed++
		}
	}
}

func holds(environ []byte, marker string) bool {
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if string(v) == marker {
			return true
		}
	}
	return false
}

// lineage is pid and its ancestors.
func lineage(pid int) (map[int]bool, error) {
	seen := map[int]bool{}
	for pid > 0 && !seen[pid] {
		seen[pid] = true
		st, err := readStat(pid)
		if err != nil {
			return nil, err
		}
		pid = st.parent
	}
	return seen, nil
}
