package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
)

// Fake is a Host in memory: mounts, loop devices and filesystems are rows in
// tables; files are real ones, so that code under test may use package os on
// them. Nothing is visible through a fake mount.
//
// Every call counts, also those that only read. FailAt and FailAfter choose one
// that goes wrong.
type Fake struct {
	mu sync.Mutex
	// The fields below are guarded by mu.
	calls    int
	failAt   int
	failErr  error
	after    bool
	capacity int64
	mounts   []MountPoint
	loops    map[string]*fakeLoop
	nextLoop int
	contents map[string]*fakeFilesystem // by backing file
	sizes    map[string]int64           // by allocated file
}

type fakeLoop struct {
	file string
	gone bool // the file it was made for is no more, whatever now has its name
	size int64
}

type fakeFilesystem struct {
	kind string
	size int64
}

var _ Host = (*Fake)(nil)

// fakeCapacity is what a new Fake's disk holds, in bytes.
const fakeCapacity = 1 << 40

// fakeDisk is the device that the Fake says its real files lie on.
const fakeDisk, fakeDiskNumber = "/dev/fake", "254:0"

// NewFake gives a machine with an empty disk of 1 TiB.
func NewFake() *Fake {
	return &Fake{
		capacity: fakeCapacity,
		loops:    make(map[string]*fakeLoop),
		contents: make(map[string]*fakeFilesystem),
		sizes:    make(map[string]int64),
	}
}

// Calls is the number of calls so far.
func (f *Fake) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// FailAt makes the n-th call from now, counted from 1, return err and do
// nothing. ReplaceFile then leaves a torn temporary file, as a crash does.
func (f *Fake) FailAt(n int, err error) { f.arm(n, err, false) }

// FailAfter makes the n-th call from now, counted from 1, return err although
// it had its effect: the outcome that a timeout hides.
func (f *Fake) FailAfter(n int, err error) { f.arm(n, err, true) }

// Heal takes back FailAt and FailAfter.
func (f *Fake) Heal() { f.arm(0, nil, false) }

func (f *Fake) arm(n int, err error, after bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failAt, f.failErr, f.after = f.calls+n, err, after
	if err == nil {
		f.failAt = 0
	}
}

// SetCapacity sets how many bytes Allocate can give out in all.
func (f *Fake) SetCapacity(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = n
}

// Reboot takes away what lives in the kernel: mounts and loop devices.
func (f *Fake) Reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mounts = nil
	clear(f.loops)
}

// Filesystem says what kind of filesystem of what size an image file holds;
// "" for none.
func (f *Fake) Filesystem(file string) (kind string, size int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fs := f.contents[file]; fs != nil {
		return fs.kind, fs.size
	}
	return "", 0
}

// do counts a call and runs its effect, unless the call is to fail.
func (f *Fake) do(ctx context.Context, effect func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	chosen := f.calls == f.failAt
	if chosen && !f.after {
		return f.failErr
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := effect(); err != nil {
		return err
	}
	if chosen {
		return f.failErr
	}
	return nil
}

// MountFilesystem implements Mounts.
func (f *Fake) MountFilesystem(ctx context.Context, device, target, fstype string, options []string) error {
	return f.do(ctx, func() error {
		flags, _, err := parseMountOptions(options)
		if err != nil {
			return err
		}
		target := resolve(target)
		loop, ok := f.loops[device]
		if !ok {
			return fmt.Errorf("mounting %s: %w", device, syscall.ENXIO)
		}
		if top := f.top(target); top != nil {
			if top.Source == device {
				return nil
			}
			return fmt.Errorf("mounting %s at %s: %s is already mounted there", device, target, top.Source)
		}
		if info, err := os.Stat(target); err != nil || !info.IsDir() {
			return errors.Join(fmt.Errorf("mounting %s at %s: no folder there", device, target), err)
		}
		fs := f.contents[loop.file]
		if loop.gone || fs == nil || fs.kind != fstype {
			return fmt.Errorf("mounting %s as %s: %w", device, fstype, syscall.EINVAL)
		}
		f.mounts = append(f.mounts, MountPoint{
			Target: target, Source: device, Root: "/", Device: loopNumber(device),
			FSType: fstype, ReadOnly: flags&syscall.MS_RDONLY != 0,
		})
		return nil
	})
}

func loopNumber(device string) string {
	return "7:" + device[len("/dev/loop"):]
}

// top is the uppermost mount at a target, nil for none. It needs mu.
func (f *Fake) top(target string) *MountPoint {
	for i := len(f.mounts) - 1; i >= 0; i-- {
		if f.mounts[i].Target == target {
			return &f.mounts[i]
		}
	}
	return nil
}

// BindMount implements Mounts.
func (f *Fake) BindMount(ctx context.Context, source, target string, readOnly bool) error {
	return f.do(ctx, func() error {
		target := resolve(target)
		want, isDir, err := f.shown(resolve(source))
		if err != nil {
			return err
		}
		inherited := want.ReadOnly
		if top := f.top(target); top != nil {
			switch {
			case top.Device != want.Device || top.Root != want.Root:
				return fmt.Errorf("binding %s to %s: %s is already mounted there", source, target, top.Source)
			case readOnly:
				top.ReadOnly = true
			case top.ReadOnly && !inherited:
				return fmt.Errorf("binding %s to %s: it is already mounted there, read-only", source, target)
			}
			return nil
		}
		if info, err := os.Stat(target); err != nil || info.IsDir() != isDir {
			return errors.Join(fmt.Errorf("binding %s to %s: the two are not of one kind", source, target), err)
		}
		want.Target, want.ReadOnly = target, readOnly || inherited
		f.mounts = append(f.mounts, want)
		return nil
	})
}

// shown is the mount that a bind of source gives, without target. It needs mu.
func (f *Fake) shown(source string) (m MountPoint, isDir bool, err error) {
	if _, ok := f.loops[source]; ok {
		return MountPoint{Source: "devtmpfs", Root: "/" + filepath.Base(source), Device: "0:5", FSType: "devtmpfs"}, false, nil
	}
	info, err := os.Stat(source)
	if err != nil {
		return m, false, err
	}
	for at := source; ; at = filepath.Dir(at) {
		if top := f.top(at); top != nil {
			m = *top
			m.Root = filepath.Join(top.Root, source[len(at):])
			return m, info.IsDir(), nil
		}
		if at == "/" {
			return MountPoint{Source: fakeDisk, Root: source, Device: fakeDiskNumber, FSType: "ext4"}, info.IsDir(), nil
		}
	}
}

// Unmount implements Mounts.
func (f *Fake) Unmount(ctx context.Context, target string) error {
	return f.do(ctx, func() error {
		target := resolve(target)
		if f.top(target) == nil {
			return nil
		}
		for _, m := range f.mounts {
			if m.Target != target && isUnder(m.Target, target) {
				return fmt.Errorf("unmounting %s: %w", target, syscall.EBUSY)
			}
		}
		f.mounts = slices.DeleteFunc(f.mounts, func(m MountPoint) bool { return m.Target == target })
		return nil
	})
}

// MountsUnder implements Mounts.
func (f *Fake) MountsUnder(prefix string) (found []MountPoint, err error) {
	err = f.do(context.Background(), func() error {
		prefix := resolve(prefix)
		for _, m := range f.mounts {
			if isUnder(m.Target, prefix) {
				found = append(found, m)
			}
		}
		return nil
	})
	return found, err
}

// MountAt implements Mounts.
func (f *Fake) MountAt(target string) (m MountPoint, ok bool, err error) {
	err = f.do(context.Background(), func() error {
		if top := f.top(resolve(target)); top != nil {
			m, ok = *top, true
		}
		return nil
	})
	return m, ok, err
}

// AttachLoop implements Loops.
func (f *Fake) AttachLoop(ctx context.Context, file string) (l Loop, err error) {
	err = f.do(ctx, func() error {
		file := resolve(file)
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("attaching %s: not a regular file", file)
		}
		for device, have := range f.loops {
			if have.file == file && !have.gone {
				l = Loop{Device: device, File: file, Size: have.size}
				return nil
			}
		}
		device := "/dev/loop" + strconv.Itoa(f.nextLoop)
		f.nextLoop++
		f.loops[device] = &fakeLoop{file: file, size: info.Size()}
		l = Loop{Device: device, File: file, Size: info.Size()}
		return nil
	})
	return l, err
}

// LoopsUnder implements Loops.
func (f *Fake) LoopsUnder(prefix string) (found []Loop, err error) {
	err = f.do(context.Background(), func() error {
		prefix := resolve(prefix)
		for device, l := range f.loops {
			if isUnder(l.file, prefix) {
				_, statErr := os.Stat(l.file)
				gone := l.gone || errors.Is(statErr, os.ErrNotExist)
				found = append(found, Loop{Device: device, File: l.file, FileGone: gone, Size: l.size})
			}
		}
		return nil
	})
	return found, err
}

// GrowLoop implements Loops.
func (f *Fake) GrowLoop(ctx context.Context, device string) error {
	return f.do(ctx, func() error {
		l, ok := f.loops[device]
		if !ok {
			return fmt.Errorf("growing %s: %w", device, syscall.ENXIO)
		}
		info, err := os.Stat(l.file)
		if err != nil {
			return err
		}
		l.size = info.Size()
		return nil
	})
}

// DetachLoop implements Loops.
func (f *Fake) DetachLoop(ctx context.Context, file string) error {
	return f.do(ctx, func() error {
		file := resolve(file)
		for device, l := range f.loops {
			if l.file != file {
				continue
			}
			for _, m := range f.mounts {
				if m.Source == device || m.FSType == "devtmpfs" && m.Root == "/"+filepath.Base(device) {
					return fmt.Errorf("detaching %s of %s: %w", device, file, syscall.EBUSY)
				}
			}
			delete(f.loops, device)
		}
		return nil
	})
}
