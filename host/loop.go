package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	loopControl = "/dev/loop-control"

	// loopBlock is the logical block of every loop device, in bytes.
	loopBlock = 512

	// detachPatience is how long DetachLoop lets those who hold a device only in
	// passing (udev, blkid, a container's start) leave it.
	detachPatience = 500 * time.Millisecond
	detachTick     = 10 * time.Millisecond
)

// AttachLoop implements Loops.
func (s *System) AttachLoop(ctx context.Context, file string) (Loop, error) {
	s.loopMu.Lock()
	defer s.loopMu.Unlock()

	back, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return Loop{}, err
	}
	defer back.Close()
	info, err := back.Stat()
	if err != nil {
		return Loop{}, err
	}
	if !info.Mode().IsRegular() {
		return Loop{}, fmt.Errorf("attaching %s: not a regular file", file)
	}
	have, err := loopsOf(file)
	if err != nil {
		return Loop{}, err
	}
	for _, l := range have {
		if l.FileGone {
			continue
		}
		kept, err := keepLoop(l)
		if err != nil || kept {
			return l, err
		}
	}
	device, err := s.newLoop(ctx, back)
	if err != nil {
		return Loop{}, fmt.Errorf("attaching %s: %w", file, err)
	}
	size, err := s.BlockSize(device)
	return Loop{Device: device, File: file, Size: size}, err
}

// keepLoop makes sure that a device found attached stays so: one that is set to
// clear itself (an interrupted detach, mount -o loop) would go away under its
// new user. It reports false if the device is gone already.
func keepLoop(l Loop) (bool, error) {
	dev, err := os.OpenFile(l.Device, os.O_RDWR, 0)
	if err != nil {
		return false, nil // a device that does not open is being torn down
	}
	defer dev.Close()
	status, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", l.Device, err)
	}
	if status.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 {
		return true, nil
	}
	status.Flags &^= unix.LO_FLAGS_AUTOCLEAR
	if err := unix.IoctlLoopSetStatus64(int(dev.Fd()), status); err != nil {
		return false, fmt.Errorf("keeping %s attached: %w", l.Device, err)
	}
	return true, nil
}

// newLoop configures a free loop device. Between the kernel's answer to
// "which is free" and the use of it, another process can take it; so it asks
// again until it wins.
func (s *System) newLoop(ctx context.Context, back *os.File) (string, error) {
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("loop devices: %w; is the kernel module loop loaded?", err)
	}
	defer control.Close()
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("asking for a free loop device: %w", err)
		}
		device := "/dev/loop" + strconv.Itoa(n)
		dev, err := openLoop(device)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EBUSY) {
			continue
		}
		if err != nil {
			return "", err
		}
		err = s.configure(dev, back)
		if err == nil {
			forbidDiscard(device)
		}
		dev.Close()
		if errors.Is(err, unix.EBUSY) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("configuring %s: %w", device, err)
		}
		return device, nil
	}
}

// openLoop opens a loop device; where /dev is not the kernel's own (a
// container's), it makes the missing node.
func openLoop(device string) (*os.File, error) {
	dev, err := os.OpenFile(device, os.O_RDWR, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return dev, err
	}
	var major, minor uint32
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "dev"))
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscanf(string(text), "%d:%d", &major, &minor); err != nil {
		return nil, fmt.Errorf("number of %s: %w", device, err)
	}
	err = unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor)))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("making %s: %w", device, err)
	}
	return os.OpenFile(device, os.O_RDWR, 0)
}

func configureLoop(dev, back *os.File) error {
	config := unix.LoopConfig{
		Fd:   uint32(back.Fd()),
		Size: loopBlock,
		// The kernel falls back to the page cache where the file cannot do
		// direct I/O.
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO},
	}
	nameLoop(&config.Info, back.Name())
	err := unix.IoctlLoopConfigure(int(dev.Fd()), &config)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return configureOldLoop(dev, back)
	}
	return err
}

// configureOldLoop is for kernels before 5.8, which lack LOOP_CONFIGURE.
func configureOldLoop(dev, back *os.File) error {
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_FD, int(back.Fd())); err != nil {
		return err
	}
	info := unix.LoopInfo64{}
	nameLoop(&info, back.Name())
	if err := unix.IoctlLoopSetStatus64(int(dev.Fd()), &info); err != nil {
		return errors.Join(err, unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0))
	}
	// Refused where the file cannot do it; then the page cache serves.
	_ = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_DIRECT_IO, 1)
	return nil
}

// nameLoop gives the name that losetup shows where it cannot see the file.
func nameLoop(info *unix.LoopInfo64, name string) {
	copy(info.File_name[:len(info.File_name)-1], name)
}

// forbidDiscard keeps users of the device from punching holes into its file.
// Where /sys is read-only nothing is lost but that protection.
func forbidDiscard(device string) {
	_ = os.WriteFile(filepath.Join("/sys/block", filepath.Base(device), "queue/discard_max_bytes"), []byte("0"), 0)
}

// GrowLoop implements Loops.
func (s *System) GrowLoop(ctx context.Context, device string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	dev, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("growing %s: %w", device, err)
	}
	return nil
}

// DetachLoop implements Loops.
func (s *System) DetachLoop(ctx context.Context, file string) error {
	s.loopMu.Lock()
	defer s.loopMu.Unlock()
	have, err := loopsOf(file)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range have {
		if err := detach(ctx, l, s.patience); err != nil {
			errs = append(errs, fmt.Errorf("detaching %s of %s: %w", l.Device, file, err))
		}
	}
	return errors.Join(errs...)
}

// detach frees one device, with patience for those who hold it only for a
// moment: a program that looks at devices, or a mount namespace that was copied
// while the filesystem was mounted and is being left (every container's start).
func detach(ctx context.Context, l Loop, patience time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, unix.EBUSY)
	defer cancel()
	if err := clearLoop(ctx, l); err != nil {
		return err
	}
	err := eachTick(ctx, func() error {
		if now, ok := readLoop(l.Device); ok && now.File == l.File {
			return unix.EBUSY
		}
		return nil
	})
	if err != nil {
		if _, keepErr := keepLoop(l); keepErr != nil {
			return errors.Join(err, keepErr)
		}
	}
	return err
}

// clearLoop asks the kernel to free the device. The kernel accepts that for a
// device that somebody has open, and then frees it at the last close; so success
// is read from /sys by the caller, and a device that stays in use is given back
// its permanence.
func clearLoop(ctx context.Context, l Loop) error {
	return eachTick(ctx, func() error {
		// O_EXCL finds a mounted filesystem and any other holder in the kernel.
		dev, err := os.OpenFile(l.Device, os.O_RDWR|os.O_EXCL, 0)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
		dev.Close()
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		return err
	})
}

// eachTick calls f until it returns something else than EBUSY, or ctx ends,
// whose cause it then returns. The kernel has no event for "no longer in use".
func eachTick(ctx context.Context, f func() error) error {
	tick := time.NewTicker(detachTick)
	defer tick.Stop()
	for {
		if err := f(); !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
