package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process holds a lock.
var ErrLocked = errors.New("locked by another process")

// Lock is an exclusive lock on a file, held until Unlock or the process's end.
type Lock struct {
	path string
	file *os.File
}

// LockFile makes the file, if need be, and locks it. The error is ErrLocked
// when another process holds it.
func LockFile(path string) (*Lock, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("opening the lock: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%s: %w", path, ErrLocked)
			}
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		// A holder removes the file before it unlocks: the lock just taken may
		// be on a file that has no name any more.
		if sameFile(f, path) {
			return &Lock{path: path, file: f}, nil
		}
		f.Close()
	}
}

func sameFile(f *os.File, path string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	if err != nil {
		return false
	}
	a, okA := held.Sys().(*syscall.Stat_t)
	b, okB := named.Sys().(*syscall.Stat_t)
	return okA && okB && a.Dev == b.Dev && a.Ino == b.Ino
}

// Unlock lets go of the lock. The file stays.
func (l *Lock) Unlock() error { return l.file.Close() }
