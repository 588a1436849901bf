package rig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Usage is what a process has used.
type Usage struct {
	// Resident and Peak are its resident memory now and at most, in bytes
	// (proc_pid_status(5), VmRSS and VmHWM).
	Resident, Peak int64
	// CPU is the time that its threads ran.
	CPU time.Duration
}

// UsageOf reads what process pid has used.
func UsageOf(pid int) (Usage, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return Usage{}, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return Usage{}, fmt.Errorf("reading the processor time of process %d: %w", pid, err)
	}
	u, err := parseUsage(status, stat)
	if err != nil {
		return Usage{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return u, nil
}

// userHZ is the unit of the times in /proc (proc_pid_stat(5)): on every
// architecture that Berth is built for it is 100 a second.
const userHZ = 100

func parseUsage(status, stat []byte) (u Usage, err error) {
	if u.Resident, err = statusBytes(status, "VmRSS"); err != nil {
		return u, err
	}
	if u.Peak, err = statusBytes(status, "VmHWM"); err != nil {
		return u, err
	}
	// The name, in parentheses, may hold anything: fields count from its end,
	// where the third is; utime and stime are the 14th and 15th.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return u, fmt.Errorf("/proc/<pid>/stat has an unknown form: %q", stat)
	}
	for _, raw := range fields[11:13] {
		ticks, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			return u, fmt.Errorf("/proc/<pid>/stat: %w", err)
		}
		u.CPU += time.Duration(ticks) * (time.Second / userHZ)
	}
	return u, nil
}

// statusBytes is a line of /proc/<pid>/status that gives a size.
func statusBytes(status []byte, key string) (int64, error) {
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == key+":" && string(fields[2]) == "kB" {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/<pid>/status, %s: %w", key, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/<pid>/status has no %s", key)
}
