package registrar

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"
)

// Timeouts and backoff are the kubelet's (pluginmanager/operationexecutor,
// goroutinemap/exponentialbackoff). Its separate 10 s for dialling are not
// needed: GetInfo itself waits for the connection.
const (
	infoTimeout   = time.Second
	notifyTimeout = 5 * time.Second
	firstBackoff  = 500 * time.Millisecond
	maxBackoff    = 2*time.Minute + 2*time.Second
)

// instance is one registration socket, from its making to its removal.
type instance struct {
	path    string
	info    fs.FileInfo
	handler Handler
	names   *names
	clock   clock.Clock
	// announced says that the event of the socket's making was read, or is not
	// to come. Only the watcher's goroutine touches it.
	announced bool

	// before is the earlier instance at this path; it leaves before this one
	// registers.
	before *instance
	// ctx ends with the socket: end is called when it is gone.
	ctx context.Context
	end context.CancelFunc
	// done is closed when the instance has left.
	done chan struct{}
	// held is the driver name that this instance registered, "" for none. Only
	// run's goroutine touches it.
	held string
	// again asks for another registration, because the one in force for this
	// name has left. It has room for one request.
	again chan struct{}
}

// replaced takes in an event and reports whether another socket, that looks the
// same, has taken the place of this one: file systems give the inode of a
// removed file to the next, and their clocks are coarse. An event of removal
// that comes before that of this socket's making is about an earlier socket.
func (i *instance) replaced(what change) bool {
	if what.made == i.path {
		i.announced = true
	}
	return i.announced && within(i.path, what.gone)
}

// ended reports that the socket is gone; left, that its registration is too.
func (i *instance) ended() bool { return i.ctx.Err() != nil }

func (i *instance) left() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// run registers the plugin, and again whenever that is needed, until the
// socket is gone or watch, the watcher's context, ends.
func (i *instance) run(watch context.Context) {
	ctx := i.ctx
	defer close(i.done)
	if i.before != nil {
		<-i.before.done
		i.before = nil // lets the chain of earlier instances be collected
	}
	logger := klog.FromContext(ctx).WithValues("socket", i.path) //nolint:contextcheck // the instance ends before the watch does
	defer i.leave(watch)
	wait := firstBackoff
	for attempt := 1; ; attempt++ {
		var retry <-chan time.Time
		err := i.register(klog.NewContext(ctx, logger), watch)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			logger.Error(err, "registering a driver failed", "attempt", attempt, "retryIn", wait)
			timer := i.clock.NewTimer(wait)
			defer timer.Stop()
			retry = timer.C()
			wait = min(2*wait, maxBackoff)
		default:
			attempt, wait = 0, firstBackoff
		}
		select {
		case <-ctx.Done():
			return
		case <-i.again:
		case <-retry:
		}
	}
}

// register is one attempt. The plugin hears of its end, whatever it is.
func (i *instance) register(ctx, watch context.Context) error {
	conn, err := dial(i.path)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)

	infoCtx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := client.GetInfo(infoCtx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("asking the plugin who it is: %w", err)
	}
	plugin, err := validate(i.path, info)
	if err == nil {
		err = i.enter(ctx, watch, plugin)
	}
	if err != nil {
		if notifyErr := notify(ctx, client, false, err.Error()); notifyErr != nil {
			klog.FromContext(ctx).Error(notifyErr, "telling a plugin of its refusal failed")
		}
		return err
	}
	if err := notify(ctx, client, true, ""); err != nil {
		// A plugin that cannot hear may be gone; the kubelet takes it out too.
		i.leave(watch)
		return err
	}
	klog.FromContext(ctx).Info("driver registered", "driver", plugin.Name, "endpoint", plugin.Endpoint)
	return nil
}

// enter puts the plugin in force. A plugin that has another name than before
// gives up the old one first.
func (i *instance) enter(ctx, watch context.Context, p Plugin) error {
	if i.held != p.Name {
		i.leave(watch)
	}
	if err := i.names.register(ctx, i, p, i.handler); err != nil {
		return err
	}
	i.held = p.Name
	return nil
}

// leave gives up the name that the instance holds. When the watcher itself
// ends, registrations stay.
func (i *instance) leave(watch context.Context) {
	if i.held == "" || watch.Err() != nil {
		return
	}
	i.names.leave(watch, i, i.held, i.handler)
	i.held = ""
}

func notify(ctx context.Context, client registerapi.RegistrationClient, ok bool, message string) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	_, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: ok, Error: message})
	if err != nil {
		return fmt.Errorf("telling the plugin the result of its registration: %w", err)
	}
	return nil
}

// dial makes a client of the socket. A socket is visible between bind and
// listen; the short first backoff bridges that.
func dial(path string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 2, MaxDelay: infoTimeout},
		}),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", path, err)
	}
	return conn, nil
}
