package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// allocateStep bounds one fallocate call, so that a large allocation notices
// the end of its context and loses little to an interrupting signal.
const allocateStep = 1 << 30

// Allocate implements Files.
func (s *System) Allocate(ctx context.Context, file string, size int64) (err error) {
	_, statErr := os.Lstat(file)
	created := errors.Is(statErr, os.ErrNotExist)
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return err
	}
	if !before.Mode().IsRegular() {
		return fmt.Errorf("allocating %s: not a regular file", file)
	}
	if err := fits(f, size-before.Size()); err != nil {
		return errors.Join(fmt.Errorf("allocating %d bytes for %s: %w", size, file, err),
			takeBack(f, before.Size(), created))
	}
	if err := fallocate(ctx, f, allocated(before), size); err != nil {
		return errors.Join(fmt.Errorf("allocating %d bytes for %s: %w", size, file, err),
			takeBack(f, before.Size(), created))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", file, err)
	}
	return nil
}

// fits spares a filesystem from being filled to its last block by an allocation
// that cannot succeed. Only fallocate itself decides that one can.
func fits(f *os.File, more int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	if more > 0 && more/st.Frsize > int64(st.Bfree) {
		return unix.ENOSPC
	}
	return nil
}

// allocated is how much of a file, from its start, has its space already: all,
// when the filesystem counts at least as many blocks for it as it has bytes. A
// file that Allocate made has no hole. Where there is one, it is 0.
func allocated(info os.FileInfo) int64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Blocks*512 < info.Size() {
		return 0
	}
	return info.Size()
}

// fallocate takes the space between from and size. xfs wants as much free space
// as the range is long, also for what the file has already, so that an image in
// a pool that is nearly full could not grow if the range began at its start.
func fallocate(ctx context.Context, f *os.File, from, size int64) error {
	for at := from; at < size; at += allocateStep {
		n := min(allocateStep, size-at)
		for {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := unix.Fallocate(int(f.Fd()), 0, at, n)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// takeBack undoes an allocation that did not fit.
func takeBack(f *os.File, size int64, created bool) error {
	if created {
		return os.Remove(f.Name())
	}
	return f.Truncate(size)
}

// BlockSize implements Files.
func (s *System) BlockSize(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return 0, fmt.Errorf("size of %s: not a block device", device)
	}
	return f.Seek(0, io.SeekEnd)
}

// ReplaceFile implements Files.
func (s *System) ReplaceFile(file string, content []byte) error {
	temp := tempName(file)
	if err := writeSynced(temp, content); err != nil {
		return fmt.Errorf("replacing %s: %w", file, err)
	}
	if err := os.Rename(temp, file); err != nil {
		return fmt.Errorf("replacing %s: %w", file, err)
	}
	return s.SyncDir(filepath.Dir(file))
}

func tempName(file string) string {
	return filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".tmp")
}

func writeSynced(file string, content []byte) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// RemoveFile implements Files.
func (s *System) RemoveFile(file string) error {
	// unlink, not os.Remove, which would take away an empty folder too.
	err := unix.Unlink(file)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &os.PathError{Op: "unlink", Path: file, Err: err}
	}
	return s.SyncDir(filepath.Dir(file))
}

// LockFile implements Files.
func (s *System) LockFile(file string) (func() error, error) {
	return lockFile(file)
}

func lockFile(file string) (func() error, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("locking %s: %w", file, err)
	}
	// The file stays: removing it would let two holders lock two inodes.
	return f.Close, nil
}

// SyncDir implements Files.
func (s *System) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if err != nil {
		err = fmt.Errorf("syncing folder %s: %w", dir, err)
	}
	return errors.Join(err, f.Close())
}
