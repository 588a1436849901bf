package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// toolTimeout bounds a tool whose caller set no deadline.
	toolTimeout = 10 * time.Minute
	// toolOutputMax bounds what an error quotes of a tool's output, in bytes.
	toolOutputMax = 1024
	// toolGrace is how long a killed tool may take to close its output.
	toolGrace = 5 * time.Second
)

// toolError is a tool that ran and failed.
type toolError struct {
	tool   string
	code   int // exit code; -1 when it was killed
	output string
	err    error
}

func (e *toolError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.tool, e.err, e.output)
}

func (e *toolError) Unwrap() error { return e.err }

// tool runs one of the host's programs and returns its standard output. A
// failure is a *toolError, a missing program a *toolMissingError, the end of
// ctx its error.
func (s *System) tool(ctx context.Context, name string, args ...string) ([]byte, error) {
	path, err := s.findTool(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	cmd.WaitDelay = toolGrace
	if s.root != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: s.root}
	}
	err = cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		return nil, fmt.Errorf("%s: %w", name, ctxErr)
	}
	code := -1
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	return stdout.Bytes(), &toolError{tool: name, code: code, output: tail(stdout.String()+"\n"+stderr.String(), toolOutputMax), err: err}
}

// exitCode is the exit code in a tool's error; -1 if it did not exit by itself.
func exitCode(err error) int {
	if t, ok := errors.AsType[*toolError](err); ok {
		return t.code
	}
	return -1
}

// findTool looks for a program under the host's root, since exec's own search
// would look outside of it.
func (s *System) findTool(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/run/current-system/sw/bin"} {
		path := filepath.Join(dir, name)
		// Lstat: an absolute link points into the host's root, not ours.
		if info, err := os.Lstat(filepath.Join(s.root, path)); err == nil && !info.IsDir() {
			return path, nil
		}
	}
	return "", &toolMissingError{tool: name, root: s.root}
}

// tail is the end of a text, in one line.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = "…" + strings.ToValidUTF8(s[len(s)-n:], "")
	}
	return strings.Join(strings.Fields(s), " ")
}
