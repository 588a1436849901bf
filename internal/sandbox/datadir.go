package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-storage/berth/host/process"
)

// RunningError says that a sandbox lives in the data folder.
type RunningError struct {
	DataDir string
	// Supervisor is the process that holds it; zero when it could not be read.
	Supervisor process.ID
}

// Error names the folder and the way out.
func (e *RunningError) Error() string {
	return fmt.Sprintf("a sandbox runs in %s (process %d); end it with: berth-sandbox down --data-dir %s",
		e.DataDir, e.Supervisor.PID, e.DataDir)
}

// dataDir is a data folder held by this process. Its lock file marks the folder
// as a sandbox's: no other folder is ever emptied.
type dataDir struct {
	layout
	lockFile *process.Lock
}

// holdDataDir makes the folder, if need be, and locks it.
func holdDataDir(dir string) (*dataDir, error) {
	l := layout{dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the data folder: %w", err)
	}
	if err := refuseForeign(l); err != nil {
		return nil, err
	}
	lock, err := process.LockFile(l.lock())
	if errors.Is(err, process.ErrLocked) {
		return nil, &RunningError{DataDir: dir, Supervisor: readHolder(l)}
	}
	if err != nil {
		return nil, err
	}
	if err := writeHolder(l); err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	return &dataDir{layout: l, lockFile: lock}, nil
}

func refuseForeign(l layout) error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("reading the data folder: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	if _, err := os.Stat(l.lock()); err != nil {
		return fmt.Errorf("data-dir %s holds files that are not of a sandbox, and would be removed: give an empty or new folder", l.dir)
	}
	return nil
}

// writeHolder notes who holds the folder, for messages and for down. The lock
// alone says whether the note is still true.
func writeHolder(l layout) error {
	id, err := process.Identify(os.Getpid())
	if err != nil {
		return err
	}
	raw, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encoding the holder of the data folder: %w", err)
	}
	if err := os.WriteFile(l.lock(), raw, 0o600); err != nil {
		return fmt.Errorf("noting the holder of the data folder: %w", err)
	}
	return nil
}

// readHolder is the zero ID where the note cannot be read.
func readHolder(l layout) process.ID {
	var id process.ID
	raw, err := os.ReadFile(l.lock())
	if err != nil || json.Unmarshal(raw, &id) != nil {
		return process.ID{}
	}
	return id
}

// empty removes everything but the lock file. The caller made sure that no
// mount remains below.
func (d *dataDir) empty() error {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("reading the data folder: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(d.dir, e.Name())
		if path == d.lock() {
			continue
		}
		if err := os.RemoveAll(path); err != nil { //nolint:forbidigo // the sandbox's own, and nothing is mounted below
			return fmt.Errorf("emptying the data folder: %w", err)
		}
	}
	return nil
}

// remove takes the emptied folder away and lets go of it. The lock file goes
// while it is still locked, so that who waits for it sees a file without a name.
func (d *dataDir) remove() error {
	err := os.Remove(d.lock())
	// A folder that someone mounted something at, or put files into, stays.
	if rmErr := os.Remove(d.dir); rmErr != nil && err == nil && !errors.Is(rmErr, os.ErrNotExist) {
		if entries, readErr := os.ReadDir(d.dir); readErr != nil || len(entries) > 0 {
			err = fmt.Errorf("removing the data folder: %w", rmErr)
		}
	}
	return errors.Join(err, d.lockFile.Unlock())
}

// isSandbox reports whether the folder is a sandbox's, running or left.
func isSandbox(l layout) bool {
	_, err := os.Stat(l.lock())
	return err == nil
}
