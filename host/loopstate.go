package host

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// deletedMark ends the kernel's name of a file that has no name any more.
const deletedMark = " (deleted)"

// LoopsUnder implements Loops.
func (s *System) LoopsUnder(prefix string) ([]Loop, error) {
	prefix = resolve(prefix)
	all, err := allLoops()
	if err != nil {
		return nil, err
	}
	var found []Loop
	for _, l := range all {
		if isUnder(l.File, prefix) {
			found = append(found, l)
			continue
		}
		if file, ok := seenUnder(l, prefix); ok {
			l.File, l.FileGone = file, false
			found = append(found, l)
		}
	}
	return found, nil
}

// seenUnder looks for the backing file of a device below prefix, where the
// kernel's name for it comes from another mount namespace and lacks the head
// of the path. Every tail of that name is tried, and the inode compared.
func seenUnder(l Loop, prefix string) (string, bool) {
	id, ok := backingOf(l.Device)
	if !ok {
		return "", false
	}
	candidates := []string{prefix}
	for tail := strings.TrimPrefix(l.File, "/"); tail != ""; {
		candidates = append(candidates, filepath.Join(prefix, tail))
		_, rest, _ := strings.Cut(tail, "/")
		tail = rest
	}
	for _, c := range candidates {
		if got, ok := inodeOf(c); ok && got == id {
			return c, true
		}
	}
	return "", false
}

// loopsOf lists the devices of one file: by inode those of the file that exists,
// by name those of a deleted one that was called so.
func loopsOf(file string) ([]Loop, error) {
	name := resolve(file)
	want, exists := inodeOf(file)
	all, err := allLoops()
	if err != nil {
		return nil, err
	}
	var found []Loop
	for _, l := range all {
		if l.FileGone {
			if l.File == name {
				found = append(found, l)
			}
			continue
		}
		if got, ok := backingOf(l.Device); exists && ok && got == want {
			found = append(found, l)
		}
	}
	return found, nil
}

// allLoops reads the loop devices in use from /sys.
func allLoops() ([]Loop, error) {
	entries, err := os.ReadDir("/sys/block")
	if err != nil {
		return nil, err
	}
	var all []Loop
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "loop") {
			continue
		}
		if l, ok := readLoop("/dev/" + e.Name()); ok {
			all = append(all, l)
		}
	}
	return all, nil
}

// readLoop reads one device; false if it has no file. A device that goes away
// meanwhile has none.
func readLoop(device string) (Loop, bool) {
	sys := filepath.Join("/sys/block", filepath.Base(device))
	name, err := os.ReadFile(filepath.Join(sys, "loop/backing_file"))
	if err != nil {
		return Loop{}, false
	}
	sectors, err := os.ReadFile(filepath.Join(sys, "size"))
	if err != nil {
		return Loop{}, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(sectors)), 10, 64)
	if err != nil {
		return Loop{}, false
	}
	l := Loop{Device: device, File: strings.TrimSuffix(string(name), "\n"), Size: n * 512}
	if before, ok := strings.CutSuffix(l.File, deletedMark); ok {
		// A file may really be called so.
		if _, err := os.Lstat(l.File); errors.Is(err, os.ErrNotExist) {
			l.File, l.FileGone = before, true
		}
	}
	return l, true
}

// inode identifies a file while it exists.
type inode struct {
	dev, ino uint64
}

func inodeOf(file string) (inode, bool) {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return inode{}, false
	}
	return inode{dev: st.Dev, ino: st.Ino}, true
}

// backingOf asks the device itself which inode backs it.
func backingOf(device string) (inode, bool) {
	dev, err := os.Open(device)
	if err != nil {
		return inode{}, false
	}
	defer dev.Close()
	status, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return inode{}, false
	}
	return inode{dev: status.Device, ino: status.Inode}, true
}
