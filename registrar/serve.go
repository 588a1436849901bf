package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Status is what a watcher answered to a registration.
type Status struct {
	// Registered is false when the watcher refused the plugin.
	Registered bool
	// Message is the watcher's reason for a refusal.
	Message string
}

// Announcement is what Serve tells a watcher about one driver.
type Announcement struct {
	// Dir is the watched folder, <kubelet root>/plugins_registry. It must exist.
	Dir string
	// Driver is the CSI driver's name.
	Driver string
	// Endpoint is the path of the driver's own socket, as the watcher sees it.
	Endpoint string
	// Again makes the driver register anew at each signal, for a driver whose
	// NodeGetInfo has another answer now: a watcher asks only at registration.
	// nil never does.
	Again <-chan struct{}
	// OnStatus is called for every answer of a watcher; nil ignores them.
	OnStatus func(context.Context, Status)
}

// SocketPath is where the driver is announced (the name that
// node-driver-registrar gives its socket).
func (a Announcement) SocketPath() string {
	return filepath.Join(a.Dir, a.Driver+"-reg.sock")
}

// Serve announces the driver until ctx ends, and then takes the socket away. A
// socket that somebody else removed is made again; one that somebody else made
// in its place is left alone, and Serve ends with an error that says so. Serve
// refuses a path that holds something other than a dead socket.
func Serve(ctx context.Context, a Announcement) error {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("announcing driver %s: %w", a.Driver, err)
	}
	defer watch.Close()
	// The watch stands before the socket does, so that no removal is missed.
	if err := watch.Add(a.Dir); err != nil {
		return fmt.Errorf("announcing driver %s: watching %s: %w", a.Driver, a.Dir, err)
	}
	for {
		again, err := a.serveOnce(ctx, watch)
		if err != nil {
			return fmt.Errorf("announcing driver %s: %w", a.Driver, err)
		}
		if !again {
			return nil
		}
		klog.FromContext(ctx).Info("making the registration socket again", "driver", a.Driver)
	}
}

// serveOnce serves one socket. It reports true when the socket was removed, or
// is to be made again, while ctx still runs.
func (a Announcement) serveOnce(ctx context.Context, watch *fsnotify.Watcher) (bool, error) {
	listener, mine, err := ListenPrivate(ctx, a.SocketPath())
	if err != nil {
		return false, err
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, announcer{a: a, logger: klog.FromContext(ctx)})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		a.unlink(ctx, mine)
		server.Stop()
	}()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case err := <-served:
			return false, fmt.Errorf("serving %s: %w", a.SocketPath(), err)
		case <-a.Again:
			return true, nil
		case _, open := <-watch.Events:
			if !open {
				return false, errors.New("the watch of the folder ended")
			}
		case err := <-watch.Errors:
			// An overflow may have hidden a removal: look, as after any event.
			klog.FromContext(ctx).V(2).Info("watch of the folder was disturbed", "err", err)
		}
		switch now, err := os.Lstat(a.SocketPath()); {
		case errors.Is(err, fs.ErrNotExist):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("looking at own socket: %w", err)
		case !os.SameFile(now, mine):
			return false, fmt.Errorf("%s was replaced by another process; only one may announce the driver", a.SocketPath())
		}
	}
}

// unlink removes the socket if it is still the one that listen made. Between
// look and removal another process could rename its own socket there; the
// window is that of two system calls, and the loser makes its socket again.
func (a Announcement) unlink(ctx context.Context, mine fs.FileInfo) {
	now, err := os.Lstat(a.SocketPath())
	if err != nil || !os.SameFile(now, mine) {
		return
	}
	if err := os.Remove(a.SocketPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "removing the registration socket failed", "driver", a.Driver)
	}
}

// announcer is the gRPC side of an Announcement.
type announcer struct {
	registerapi.UnimplementedRegistrationServer
	a      Announcement
	logger klog.Logger // of Serve: a call's own context has none
}

// GetInfo implements registerapi.RegistrationServer.
func (s announcer) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type:              registerapi.CSIPlugin,
		Name:              s.a.Driver,
		Endpoint:          s.a.Endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer.
func (s announcer) NotifyRegistrationStatus(ctx context.Context, r *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if !r.GetPluginRegistered() {
		s.logger.Info("driver registration was refused", "driver", s.a.Driver, "reason", r.GetError())
	}
	if s.a.OnStatus != nil {
		s.a.OnStatus(klog.NewContext(ctx, s.logger), Status{Registered: r.GetPluginRegistered(), Message: r.GetError()})
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
