package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/host/process"
)

// sweepTimeout bounds the whole of a sweep; sweepPause is the time between two
// tries at a busy mount or device, whose release the kernel does not announce.
const (
	sweepTimeout = 30 * time.Second
	sweepPause   = 50 * time.Millisecond
)

// sweep ends every process of the sandbox, unmounts everything below its folder,
// frees its loop devices and empties the folder. It does the same after Stop,
// after a crash and on a clean folder.
func (d *dataDir) sweep(ctx context.Context, machine host.Host) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	if _, err := process.KillMarked(ctx, d.marker()); err != nil {
		return fmt.Errorf("ending the processes of %s: %w", d.dir, err)
	}
	if err := sweepDevices(ctx, machine, d.dir); err != nil {
		return err
	}
	return d.empty()
}

// sweepDevices frees mounts and loop devices in rounds: a volume's loop device
// lies on a pool, which is a mount of a loop device, so that each round may make
// the next one possible. It ends when nothing is left; RemoveAll must never meet
// a mount.
func sweepDevices(ctx context.Context, machine host.Host, dir string) error {
	for {
		left, err := sweepRound(ctx, machine, dir)
		if err == nil && left == 0 {
			return nil
		}
		pause := time.NewTimer(sweepPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("freeing the mounts and loop devices of %s, %d left: %w", dir, left, errors.Join(ctx.Err(), err))
		case <-pause.C:
		}
	}
}

// sweepRound tries each mount and device once, and returns how many there were.
func sweepRound(ctx context.Context, machine host.Host, dir string) (int, error) {
	mounts, err := machine.MountsUnder(dir)
	if err != nil {
		return 1, err
	}
	// The folder itself may be a mount of the user's.
	mounts = slices.DeleteFunc(mounts, func(m host.MountPoint) bool { return m.Target == dir })
	var errs []error
	for _, m := range slices.Backward(mounts) {
		errs = append(errs, machine.Unmount(ctx, m.Target))
	}
	loops, err := machine.LoopsUnder(dir)
	if err != nil {
		return len(mounts) + 1, err
	}
	for _, l := range loops {
		errs = append(errs, machine.DetachLoop(ctx, l.File))
	}
	return len(mounts) + len(loops), errors.Join(errs...)
}

// Remove ends the sandbox in dir, whoever runs it, and leaves nothing behind. A
// folder that does not exist is success; found says whether there was anything.
func Remove(ctx context.Context, dir string, machine host.Host) (found bool, err error) {
	dir, err = CleanDataDir(dir)
	if err != nil {
		return false, err
	}
	l := layout{dir}
	if !isSandbox(l) {
		ids, err := process.Marked(l.marker())
		if err != nil || len(ids) == 0 {
			return false, err
		}
	}
	d, err := takeOver(ctx, l)
	if err != nil {
		return true, err
	}
	if err := d.sweep(ctx, machine); err != nil {
		return true, errors.Join(err, d.lockFile.Unlock())
	}
	return true, d.remove()
}

// stopTimeout is how long a supervisor may take to end by itself.
const stopTimeout = 45 * time.Second

// takeOver asks the holder of the folder to end, ends it by force if it does
// not, and holds the folder then.
func takeOver(ctx context.Context, l layout) (*dataDir, error) {
	for {
		d, err := holdDataDir(l.dir)
		var running *RunningError
		if !errors.As(err, &running) {
			return d, err
		}
		if err := endHolder(ctx, running.Supervisor); err != nil {
			return nil, err
		}
	}
}

// Leftovers looks for anything of a sandbox that should be gone: a process, a
// mount, a loop device or a file. The error names what it found.
func Leftovers(dir string, machine host.Host) error {
	dir, err := CleanDataDir(dir)
	if err != nil {
		return err
	}
	l := layout{dir}
	ids, err := process.Marked(l.marker())
	if err != nil {
		return err
	}
	mounts, err := machine.MountsUnder(dir)
	if err != nil {
		return err
	}
	loops, err := machine.LoopsUnder(dir)
	if err != nil {
		return err
	}
	var files []string
	if _, err := os.Lstat(dir); err == nil {
		files = append(files, dir)
	}
	if len(ids)+len(mounts)+len(loops)+len(files) > 0 {
		return fmt.Errorf("left behind: processes %v, mounts %v, loop devices %v, files %v", ids, mounts, loops, files)
	}
	return nil
}
