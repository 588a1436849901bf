package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The descriptors that Start passes.
const (
	specDescriptor   = 3
	statusDescriptor = 4
)

// setupStatus is the exit status of a container that could not be set up; the
// kubelet uses it for the same (kuberuntime, "StartError").
const setupStatus = 128

// Init makes this process, started by Start, the container's command. It
// returns, with the exit status to end with, only when that failed.
func Init() int {
	// Kept open until execve, whose success it tells by closing.
	unix.CloseOnExec(statusDescriptor)
	status := os.NewFile(statusDescriptor, "status")
	err := initialize()
	// Nobody is left to hear of a failure to tell.
	_, _ = io.WriteString(status, err.Error())
	return setupStatus
}

// initialize returns only on an error.
func initialize() error {
	spec, err := readSpec()
	if err != nil {
		return err
	}
	// From here on no mount made here reaches the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	// Sources are opened while the host's paths still lead to them.
	mounts, err := openMounts(spec.Mounts)
	if err != nil {
		return err
	}
	if err := buildRoot(spec); err != nil {
		return err
	}
	if err := enterRoot(filepath.Join(spec.Scratch, "root")); err != nil {
		return err
	}
	// Targets are made and mounted inside: a symbolic link in them cannot lead
	// to the host.
	for _, m := range mounts {
		if err := m.place(); err != nil {
			return err
		}
	}
	if err := enterDir(spec.Dir); err != nil {
		return err
	}
	if spec.ReadOnlyRoot {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("making the root read-only: %w", err)
		}
	}
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	return become(spec)
}

func readSpec() (Spec, error) {
	f := os.NewFile(specDescriptor, "spec")
	defer f.Close()
	var spec Spec
	if err := json.NewDecoder(f).Decode(&spec); err != nil {
		return spec, fmt.Errorf("reading the container's description: %w", err)
	}
	return spec, nil
}

// enterRoot makes root the root, and lets go of the host's mounts: a copy of one
// held here would keep its device busy long after the host unmounted it.
func enterRoot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("entering the root: %w", err)
	}
	// The old root is stacked on the new one, and taken off (pivot_root(2),
	// "pivot_root(".", ".")").
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("letting go of the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("entering the root: %w", err)
	}
	return nil
}

func enterDir(dir string) error {
	if dir == "" {
		dir = "/"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the working folder: %w", err)
	}
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("entering the working folder: %w", err)
	}
	return nil
}

// become turns this process into the command.
func become(spec Spec) error {
	path, err := lookUp(spec.Args[0], spec.Env)
	if err != nil {
		return err
	}
	// The parent-death signal belongs to a thread, and execve keeps that of the
	// thread that calls it. A change of user clears it.
	runtime.LockOSThread()
	if u := spec.User; u != nil {
		if err := changeUser(*u); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("tying the container to its parent: %w", err)
	}
	// syscall.Exec, not unix.Exec: it also gives back the file limit that the Go
	// runtime raised.
	if err := syscall.Exec(path, spec.Args, spec.Env); err != nil {
		return fmt.Errorf("running %s: %w", path, err)
	}
	return nil
}

func changeUser(u User) error {
	if err := syscall.Setgroups(u.Groups); err != nil {
		return fmt.Errorf("setting the groups: %w", err)
	}
	if err := syscall.Setgid(u.GID); err != nil {
		return fmt.Errorf("setting the group: %w", err)
	}
	if err := syscall.Setuid(u.UID); err != nil {
		return fmt.Errorf("setting the user: %w", err)
	}
	return nil
}

// defaultPath is the PATH of a container that sets none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func lookUp(command string, env []string) (string, error) {
	path := defaultPath
	for _, v := range slices.Backward(env) {
		if rest, ok := strings.CutPrefix(v, "PATH="); ok {
			path = rest
			break
		}
	}
	if err := os.Setenv("PATH", path); err != nil {
		return "", fmt.Errorf("setting PATH: %w", err)
	}
	found, err := exec.LookPath(command)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", fmt.Errorf("looking up the command: %w", err)
	}
	return found, nil
}
