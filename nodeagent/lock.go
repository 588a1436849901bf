package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockRoot makes this process the only agent of a root folder. The lock goes
// with the process, however that ends.
func lockRoot(root string) (release func() error, err error) {
	dir := filepath.Join(root, "berth")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("locking %s: %w", root, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", root, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another berth-agent uses this root; stop it, or give this one another --root")
		}
		return nil, errors.Join(fmt.Errorf("locking %s: %w", root, err), f.Close())
	}
	return f.Close, nil
}

// refuseKubelet fails where a kubelet serves the node: it would stage and
// publish the same volumes, and rewrite the same CSINode.
func refuseKubelet(ctx context.Context, root string) error {
	path := filepath.Join(root, "pod-resources", "kubelet.sock")
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil //nolint:nilerr // nobody there, or a socket that a kubelet left
	}
	return errors.Join(
		fmt.Errorf("a kubelet answers on %s and owns this node's volumes; use --mode=kubelet, or another root", path),
		conn.Close())
}
