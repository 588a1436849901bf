package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// content is what a device holds, nil for nothing. It needs mu.
func (f *Fake) content(device string) (*fakeLoop, *fakeFilesystem, error) {
	l, ok := f.loops[device]
	if !ok {
		return nil, nil, &os.PathError{Op: "open", Path: device, Err: syscall.ENXIO}
	}
	return l, f.contents[l.file], nil
}

// Probe implements Filesystems.
func (f *Fake) Probe(ctx context.Context, device string) (found string, err error) {
	err = f.do(ctx, func() error {
		_, fs, err := f.content(device)
		if fs != nil {
			found = fs.kind
		}
		return err
	})
	return found, err
}

// Format implements Filesystems.
func (f *Fake) Format(ctx context.Context, device, fstype string, _ []string) error {
	return f.do(ctx, func() error {
		l, fs, err := f.content(device)
		switch {
		case err != nil:
			return err
		case fs != nil:
			return fmt.Errorf("formatting %s as %s: it holds %s: %w", device, fstype, fs.kind, ErrNotEmpty)
		case fstype != "ext4" && fstype != "xfs":
			return fmt.Errorf("formatting %s: filesystem %q is not known; want ext4 or xfs", device, fstype)
		}
		f.contents[l.file] = &fakeFilesystem{kind: fstype, size: l.size}
		return nil
	})
}

// Check implements Filesystems.
func (f *Fake) Check(ctx context.Context, device, fstype string) error {
	return f.do(ctx, func() error {
		_, fs, err := f.content(device)
		if err == nil && fstype == "ext4" && (fs == nil || fs.kind != fstype) {
			err = fmt.Errorf("checking %s: it holds no %s", device, fstype)
		}
		return err
	})
}

// GrowFilesystem implements Filesystems.
func (f *Fake) GrowFilesystem(ctx context.Context, device, mountPoint, fstype string) error {
	return f.do(ctx, func() error {
		l, fs, err := f.content(device)
		if err != nil {
			return err
		}
		if fs == nil || fs.kind != fstype {
			return fmt.Errorf("growing the filesystem on %s: it holds no %s", device, fstype)
		}
		if mountPoint == "" {
			if fstype == "ext4" {
				fs.size = max(fs.size, l.size)
			}
			return nil
		}
		if top := f.top(resolve(mountPoint)); top == nil || top.Source != device {
			return fmt.Errorf("growing the filesystem on %s: it is not mounted at %s", device, mountPoint)
		}
		fs.size = max(fs.size, l.size)
		return nil
	})
}

// Statfs implements Filesystems. Fake filesystems are always empty.
func (f *Fake) Statfs(path string) (u Usage, err error) {
	err = f.do(context.Background(), func() error {
		if _, err := os.Stat(path); err != nil {
			return err
		}
		const inodes = 1 << 20
		u = Usage{TotalInodes: inodes, AvailableInodes: inodes}
		m, _, err := f.shown(resolve(path))
		if err != nil {
			return err
		}
		if l, ok := f.loops[m.Source]; ok {
			if fs := f.contents[l.file]; fs != nil {
				u.TotalBytes, u.AvailableBytes = fs.size, fs.size
			}
			return nil
		}
		u.TotalBytes, u.UsedBytes = f.capacity, f.used()
		u.AvailableBytes = u.TotalBytes - u.UsedBytes
		return nil
	})
	return u, err
}

// used is the sum of the allocated files that still exist. It needs mu.
func (f *Fake) used() int64 {
	var sum int64
	for file, size := range f.sizes {
		if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
			f.forget(file)
			continue
		}
		sum += size
	}
	return sum
}

// forget drops what belonged to a file that was removed. It needs mu.
func (f *Fake) forget(file string) {
	delete(f.sizes, file)
	delete(f.contents, file)
	for _, l := range f.loops {
		if l.file == file {
			l.gone = true
		}
	}
}

// Allocate implements Files.
func (f *Fake) Allocate(ctx context.Context, file string, size int64) error {
	return f.do(ctx, func() error {
		file := resolve(file)
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, os.ErrNotExist):
			f.forget(file)
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			return fmt.Errorf("allocating %s: not a regular file", file)
		case info.Size() >= size:
			f.sizes[file] = max(f.sizes[file], size)
			return nil
		}
		if f.used()-f.sizes[file]+size > f.capacity {
			return fmt.Errorf("allocating %d bytes for %s: %w", size, file, syscall.ENOSPC)
		}
		out, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		f.sizes[file] = size
		return errors.Join(out.Truncate(size), out.Close())
	})
}

// BlockSize implements Files.
func (f *Fake) BlockSize(device string) (size int64, err error) {
	err = f.do(context.Background(), func() error {
		l, _, err := f.content(device)
		if err == nil {
			size = l.size
		}
		return err
	})
	return size, err
}

// ReplaceFile implements Files.
func (f *Fake) ReplaceFile(file string, content []byte) error {
	torn := true
	err := f.do(context.Background(), func() error {
		torn = false
		temp := tempName(file)
		return errors.Join(os.WriteFile(temp, content, 0o600), os.Rename(temp, file))
	})
	if torn {
		err = errors.Join(err, os.WriteFile(tempName(file), content[:len(content)/2], 0o600))
	}
	return err
}

// RemoveFile implements Files.
func (f *Fake) RemoveFile(file string) error {
	return f.do(context.Background(), func() error {
		info, err := os.Lstat(file)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return err
		case info.IsDir():
			return &os.PathError{Op: "unlink", Path: file, Err: syscall.EISDIR}
		}
		if err := os.Remove(file); err != nil {
			return err
		}
		f.forget(resolve(file))
		return nil
	})
}

// LockFile implements Files. The lock is a real one.
func (f *Fake) LockFile(file string) (unlock func() error, err error) {
	err = f.do(context.Background(), func() error {
		var err error
		unlock, err = lockFile(file)
		return err
	})
	if err != nil && unlock != nil {
		// Nobody would let go of a lock that was reported as failed.
		err = errors.Join(err, unlock())
		unlock = nil
	}
	return unlock, err
}

// SyncDir implements Files.
func (f *Fake) SyncDir(dir string) error {
	return f.do(context.Background(), func() error {
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			err = &os.PathError{Op: "sync", Path: filepath.Clean(dir), Err: syscall.ENOTDIR}
		}
		return err
	})
}
