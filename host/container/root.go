package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// devices are shown in every container's /dev.
func devices() []string {
	return []string{"null", "zero", "full", "random", "urandom", "tty"}
}

// buildRoot mounts, at <scratch>/root, a copy of the host's root filesystem
// whose changes go to memory, and what a program expects on it. Filesystems
// mounted on the host's root are not part of the copy.
func buildRoot(spec Spec) error {
	scratch := spec.Scratch
	if err := mount("tmpfs", scratch, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	root, upper, work := filepath.Join(scratch, "root"), filepath.Join(scratch, "upper"), filepath.Join(scratch, "work")
	for _, dir := range []string{root, upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("making the root: %w", err)
		}
	}
	if err := mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+upper+",workdir="+work); err != nil {
		return err
	}
	if err := mount("proc", filepath.Join(root, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	sys := filepath.Join(root, "sys")
	if err := mount("/sys", sys, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := mount("", sys, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := buildDev(filepath.Join(root, "dev")); err != nil {
		return err
	}
	// What the host has there is of no use to a pod, and changes under the copy.
	for dir, mode := range map[string]string{"tmp": "1777", "run": "755"} {
		if err := mount("tmpfs", filepath.Join(root, dir), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode="+mode); err != nil {
			return err
		}
	}
	for _, dir := range spec.Hide {
		if err := hide(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	return nil
}

func buildDev(dev string) error {
	if err := mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	for _, name := range devices() {
		if err := bindFile("/dev/"+name, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"pts", "shm"} {
		if err := os.Mkdir(filepath.Join(dev, dir), 0o755); err != nil {
			return fmt.Errorf("making /dev/%s: %w", dir, err)
		}
	}
	if err := mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return err
	}
	if err := mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return fmt.Errorf("making /dev/%s: %w", name, err)
		}
	}
	return nil
}

// hide covers a folder with an empty one that cannot be written to.
func hide(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "mode=000")
}

func bindFile(source, target string) error {
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("making %s: %w", target, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("making %s: %w", target, err)
	}
	return mount(source, target, "", unix.MS_BIND, "")
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}
