package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/volume"
)

// stopPatience is how long calls may run on after the driver was told to stop.
const stopPatience = 10 * time.Second

// Server is a driver at a socket.
type Server struct {
	driver   *Driver
	file     string
	listener net.Listener
	owned    os.FileInfo
}

// Listen makes the driver's socket at endpoint, unix:///path or a path, open to
// root alone. From then on calls are taken; Serve answers them. So whoever
// announces the driver can do it after Listen.
func (d *Driver) Listen(ctx context.Context, endpoint string) (*Server, error) {
	file, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	listener, owned, err := listen(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("serving at %s: %w", file, err)
	}
	return &Server{driver: d, file: file, listener: listener, owned: owned}, nil
}

// Serve answers calls until ctx ends, and then removes the socket. Calls in
// flight get 10 s to finish.
func (s *Server) Serve(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	server := grpc.NewServer(grpc.UnaryInterceptor(logCalls(logger)))
	csi.RegisterIdentityServer(server, s.driver)
	csi.RegisterControllerServer(server, s.driver)
	csi.RegisterNodeServer(server, s.driver)

	served := make(chan error, 1)
	go func() { served <- server.Serve(s.listener) }()
	logger.V(2).Info("driver serves", "driver", volume.DriverName, "node", s.driver.nodeID)
	select {
	case err := <-served:
		return errors.Join(fmt.Errorf("serving at %s: %w", s.file, err), s.Close())
	case <-ctx.Done():
	}
	// No new caller finds the socket while the old ones finish.
	err := removeOwned(s.file, s.owned)
	force := time.AfterFunc(stopPatience, server.Stop)
	defer force.Stop()
	server.GracefulStop()
	// A server that is stopped before it began says so.
	if was := <-served; !errors.Is(was, grpc.ErrServerStopped) {
		err = errors.Join(err, was)
	}
	return err
}

// Close takes the socket away; it is for a Server that Serve was not called on.
func (s *Server) Close() error {
	return errors.Join(removeOwned(s.file, s.owned), ignoreClosed(s.listener.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func socketPath(endpoint string) (string, error) {
	file := strings.TrimPrefix(endpoint, "unix://")
	if strings.Contains(file, "://") || !filepath.IsAbs(file) {
		return "", fmt.Errorf("endpoint %q: want unix:///path/to/csi.sock", endpoint)
	}
	return filepath.Clean(file), nil
}

// listen makes the socket. A socket that somebody answers on is another driver's
// and stays; one that nobody does is left from a crash and goes. Anything else
// at that path is not touched.
func listen(ctx context.Context, file string) (net.Listener, os.FileInfo, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, nil, err
	}
	info, err := os.Lstat(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, nil, errors.New("there is a file that is no socket; remove it")
	default:
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", file); err == nil {
			conn.Close()
			return nil, nil, errors.New("another process serves there")
		}
		if err := os.Remove(file); err != nil {
			return nil, nil, err
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", file)
	if err != nil {
		return nil, nil, err
	}
	// The removal is the Server's, which knows whose the socket is.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	owned, err := os.Lstat(file)
	if err == nil {
		err = os.Chmod(file, 0o600)
	}
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close())
	}
	return listener, owned, nil
}

// removeOwned removes the socket if it is still the one that was made: a
// successor may have put its own in the place.
func removeOwned(file string, owned os.FileInfo) error {
	now, err := os.Lstat(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(now, owned) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(file)
}

// logCalls logs every call's end. Requests are not logged: they may hold secrets.
func logCalls(logger klog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		log := logger.WithValues("step", path.Base(info.FullMethod))
		if r, ok := req.(interface{ GetVolumeId() string }); ok {
			log = log.WithValues("volumeID", r.GetVolumeId())
		}
		resp, err := handler(klog.NewContext(ctx, log), req)
		if err != nil {
			log.Error(err, "call failed", "reason", status.Code(err).String())
			return nil, err
		}
		log.V(4).Info("call done")
		return resp, nil
	}
}
