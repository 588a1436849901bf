// Package container runs a command as the first process of namespaces of its
// own, on a throw-away copy of the host's root filesystem, with chosen folders,
// files and devices of the host mounted into it.
//
// It keeps processes apart so that none outlives its container and none sees
// the host's mounts; it is no wall against a hostile program.
//
// A program that calls Start must call Init when it is run with InitCommand as
// its first argument: the container is set up by the caller's own binary, which
// then becomes the command (execve), as runc does it. So the command is pid 1 of
// its namespace: when it ends, the kernel ends all others, and a signal that it
// neither handles nor ignores does not reach it, SIGKILL excepted.
package container
