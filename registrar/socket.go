package registrar

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// socketMode lets root alone connect: whoever can speak on these sockets
// decides what the node mounts.
const socketMode fs.FileMode = 0o600

// ListenPrivate makes a unix socket that only the user of this process can
// connect to. It is bound under a hidden name, which watchers ignore, closed to
// others, and only then renamed: it appears whole, with its mode, and without
// touching the umask of the process. A socket at path that nobody answers on is
// replaced; anything else there is an error.
//
// Closing the listener leaves the socket, since by then the name may be
// another's; the caller compares with the returned info before it removes it.
func ListenPrivate(ctx context.Context, path string) (net.Listener, fs.FileInfo, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, nil, err
	}
	hidden := hiddenName(path)
	if err := os.Remove(hidden); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("removing an unfinished socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf("listening beside %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false)
	mine, err := nameSocket(hidden, path)
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close(), os.Remove(hidden))
	}
	return listener, mine, nil
}

// hiddenName is short, since the path of a socket is bounded, and this
// process's own for this path.
func hiddenName(path string) string {
	sum := fnv.New32a()
	sum.Write([]byte(path))
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%d-%x", os.Getpid(), sum.Sum32()))
}

func nameSocket(hidden, path string) (fs.FileInfo, error) {
	if err := os.Chmod(hidden, socketMode); err != nil {
		return nil, fmt.Errorf("closing the socket to others: %w", err)
	}
	info, err := os.Lstat(hidden)
	if err != nil {
		return nil, fmt.Errorf("looking at own socket: %w", err)
	}
	if err := os.Rename(hidden, path); err != nil {
		return nil, fmt.Errorf("naming the socket: %w", err)
	}
	return info, nil
}

// removeStale clears the way for a socket at path. Only a socket that nobody
// answers on is removed.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for an old socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket; remove it if nobody needs it", path)
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s is served by another process; only one may", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a stale socket: %w", err)
	}
	return nil
}
