package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-storage/berth/host/process"
)

// InitCommand is the first argument with which a program becomes a container.
const InitCommand = "container-init"

// namespaces of a container. The network is the host's.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Spec says what runs in the container and what it sees. It may hold secrets:
// it travels through a pipe, never as an argument.
type Spec struct {
	// Hostname is the name that the container sees.
	Hostname string
	// Args are the command and its arguments; the command is looked up in Env's
	// PATH, inside the container.
	Args []string
	// Env is the whole environment.
	Env []string
	// Dir is the working folder, made if need be; empty means /.
	Dir string
	// User runs the command; nil means root.
	User *User
	// Scratch is an empty folder of the host, used as a place to mount at.
	// Containers may share it: each sees its own mounts alone.
	Scratch string
	// Mounts are shown to the container.
	Mounts []Mount
	// Hide are folders of the host that the container sees empty.
	Hide []string
	// ReadOnlyRoot forbids writing outside of Mounts.
	ReadOnlyRoot bool
}

// User is who runs the command.
type User struct {
	UID, GID int
	Groups   []int
}

// Mount shows a folder, a file or a device of the host in the container.
type Mount struct {
	// Source is its path on the host.
	Source string
	// SubPath is a path below Source to show in its place. A symbolic link that
	// leads out of Source is an error; missing folders are made.
	SubPath string
	// Target is its path in the container, made if need be.
	Target string
	// ReadOnly is enforced by the kernel for this mount alone.
	ReadOnly bool
}

// Options say how to start a container.
type Options struct {
	// Name is for people.
	Name string
	// Program is the binary that calls Init; empty means the running one.
	Program string
	// Log is the file that the command's output is appended to.
	Log string
	// Marker is as in process.Spec; the command carries it too.
	Marker string
}

// SetupError says that the command could not be started: the container's fault,
// not the host's.
type SetupError struct {
	Container string
	// Message is what the container said.
	Message string
}

// Error is the container's own message.
func (e *SetupError) Error() string {
	return fmt.Sprintf("setting up container %s: %s", e.Container, e.Message)
}

// Start starts a container and returns when its command runs. The error is a
// *SetupError when the container could not be made as Spec says.
func Start(ctx context.Context, options Options, spec Spec) (*process.Process, error) {
	if len(spec.Args) == 0 {
		return nil, &SetupError{options.Name, "no command is given, and an image's own is not known here"}
	}
	if options.Marker != "" {
		spec.Env = append(slices.Clip(spec.Env), options.Marker)
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encoding container %s: %w", options.Name, err)
	}
	program := options.Program
	if program == "" {
		program = "/proc/self/exe"
	}
	specR, specW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe for container %s: %w", options.Name, err)
	}
	defer specW.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making a pipe for container %s: %w", options.Name, err), specR.Close())
	}
	defer statusR.Close()
	p, err := process.Start(process.Spec{
		Name: options.Name, Path: program, Args: []string{InitCommand},
		Env: []string{}, Marker: options.Marker, Dir: "/", Log: options.Log,
		Files: []*os.File{specR, statusW}, Namespaces: namespaces,
	})
	// The child has its own: with these open, neither end would be noticed.
	specR.Close()
	statusW.Close()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		// Ends the two waits below.
		_ = p.Kill()
	})
	message, err := exchange(specW, statusR, raw)
	if !stop() {
		err = errors.Join(ctx.Err(), p.Kill())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting container %s: %w", options.Name, err), p.Kill())
	}
	if message != "" {
		return nil, errors.Join(&SetupError{options.Name, message}, p.Kill())
	}
	return p, nil
}

// exchange hands the spec to the container and returns what it says: nothing
// when its command runs, since execve closes the pipe.
func exchange(spec io.WriteCloser, status io.Reader, raw []byte) (string, error) {
	if _, err := io.Copy(spec, bytes.NewReader(raw)); err != nil && !errors.Is(err, unix.EPIPE) {
		return "", err
	}
	if err := spec.Close(); err != nil {
		return "", err
	}
	message, err := io.ReadAll(status)
	return string(message), err
}
