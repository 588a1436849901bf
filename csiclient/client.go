// Package csiclient is the only CSI client of Berth. It keeps one connection
// to a driver, remembers the driver's capabilities for as long as that
// connection lives, and says what a gRPC status means for the caller: done,
// retry, wait or stop.
package csiclient

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// maxReconnectDelay bounds the pause between two attempts to reach a driver
// whose socket is gone; a driver's restart is noticed within it.
const maxReconnectDelay = time.Second

// Option changes how New makes a Client.
type Option func(*options)

type options struct {
	metrics metrics.CSIMetricsManager
}

// WithMetrics records each call as csi_sidecar_operations_seconds.
func WithMetrics(m metrics.CSIMetricsManager) Option {
	return func(o *options) { o.metrics = m }
}

// Client speaks to one driver over one connection, which is made at the first
// call and made anew whenever it is lost. It is safe for concurrent use.
type Client struct {
	conn     *grpc.ClientConn
	endpoint string

	mu sync.Mutex
	// dials counts connections made. Guarded by mu.
	dials int
	// caps is what the driver said over connection number capsOf. Guarded by mu.
	caps   capabilities
	capsOf int
}

// capabilities are the answers that a driver gives once in its life. A nil map
// was not asked for yet.
type capabilities struct {
	name       string
	plugin     rpc.PluginCapabilitySet
	controller rpc.ControllerCapabilitySet
	node       map[csi.NodeServiceCapability_RPC_Type]bool
}

// New makes a client of the driver at endpoint: an absolute path of a unix
// socket, or unix://path. It does not wait for the driver.
func New(endpoint string, opts ...Option) (*Client, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("csi endpoint %q: want unix:// and an absolute path", endpoint)
	}
	c := &Client{endpoint: path}
	interceptors := []grpc.UnaryClientInterceptor{connection.LogGRPC}
	if o.metrics != nil {
		interceptors = append(interceptors,
			connection.ExtendedCSIMetricsManager{CSIMetricsManager: o.metrics}.RecordMetricsClientInterceptor)
	}
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = maxReconnectDelay
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect}),
		grpc.WithIdleTimeout(0),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(c.dial),
		grpc.WithChainUnaryInterceptor(interceptors...),
	)
	if err != nil {
		return nil, fmt.Errorf("making a client of csi endpoint %q: %w", endpoint, err)
	}
	c.conn = conn
	return c, nil
}

// dial makes the connection; a new one may lead to another driver version, so
// what the last one said of itself is forgotten.
func (c *Client) dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		c.mu.Lock()
		c.dials++
		c.mu.Unlock()
	}
	return conn, err
}

// Close ends the connection; calls in flight end with Canceled, which is an
// uncertain outcome like any other.
func (c *Client) Close() error { return c.conn.Close() }

// Endpoint is the path of the driver's socket.
func (c *Client) Endpoint() string { return c.endpoint }

// Identity is the driver's Identity service.
func (c *Client) Identity() csi.IdentityClient { return csi.NewIdentityClient(c.conn) }

// Controller is the driver's Controller service.
func (c *Client) Controller() csi.ControllerClient { return csi.NewControllerClient(c.conn) }

// Node is the driver's Node service.
func (c *Client) Node() csi.NodeClient { return csi.NewNodeClient(c.conn) }

// DriverName is the name that GetPluginInfo gives.
func (c *Client) DriverName(ctx context.Context) (string, error) {
	known, of := c.known()
	if known.name != "" {
		return known.name, nil
	}
	name, err := rpc.GetDriverName(ctx, c.conn)
	if err != nil {
		return "", fmt.Errorf("asking the name of the driver at %s: %w", c.endpoint, err)
	}
	c.remember(of, func(caps *capabilities) { caps.name = name })
	return name, nil
}

// Probe asks the driver, each time, whether it is ready to serve.
func (c *Client) Probe(ctx context.Context) error {
	ready, err := rpc.Probe(ctx, c.conn)
	switch {
	case err != nil:
		return fmt.Errorf("probing the driver at %s: %w", c.endpoint, err)
	case !ready:
		return fmt.Errorf("the driver at %s says that it is not ready", c.endpoint)
	}
	return nil
}

// PluginHas reports whether the plugin as a whole offers a service.
func (c *Client) PluginHas(ctx context.Context, service csi.PluginCapability_Service_Type) (bool, error) {
	known, of := c.known()
	if known.plugin == nil {
		set, err := rpc.GetPluginCapabilities(ctx, c.conn)
		if err != nil {
			return false, fmt.Errorf("asking the plugin capabilities of the driver at %s: %w", c.endpoint, err)
		}
		known.plugin = set
		c.remember(of, func(caps *capabilities) { caps.plugin = set })
	}
	return known.plugin[service], nil
}

// ControllerHas reports whether the Controller service has a capability.
func (c *Client) ControllerHas(ctx context.Context, capability csi.ControllerServiceCapability_RPC_Type) (bool, error) {
	known, of := c.known()
	if known.controller == nil {
		set, err := rpc.GetControllerCapabilities(ctx, c.conn)
		if err != nil {
			return false, fmt.Errorf("asking the controller capabilities of the driver at %s: %w", c.endpoint, err)
		}
		known.controller = set
		c.remember(of, func(caps *capabilities) { caps.controller = set })
	}
	return known.controller[capability], nil
}

// NodeHas reports whether the Node service has a capability.
func (c *Client) NodeHas(ctx context.Context, capability csi.NodeServiceCapability_RPC_Type) (bool, error) {
	known, of := c.known()
	if known.node == nil {
		rsp, err := c.Node().NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		if err != nil {
			return false, fmt.Errorf("asking the node capabilities of the driver at %s: %w", c.endpoint, err)
		}
		set := make(map[csi.NodeServiceCapability_RPC_Type]bool)
		for _, one := range rsp.GetCapabilities() {
			if r := one.GetRpc(); r != nil {
				set[r.GetType()] = true
			}
		}
		known.node = set
		c.remember(of, func(caps *capabilities) { caps.node = set })
	}
	return known.node[capability], nil
}

// known returns what the present connection's driver said, and the number of
// that connection.
func (c *Client) known() (capabilities, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.capsOf != c.dials {
		c.caps, c.capsOf = capabilities{}, c.dials
	}
	return c.caps, c.capsOf
}

// remember keeps an answer that was asked for over connection number of. The
// first call of a client makes connection 1 itself, so an answer to a question
// asked before any connection belongs to it; any other change of the number
// in between means that the answer may be an older driver's.
func (c *Client) remember(of int, set func(*capabilities)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of == 0 && c.dials == 1 && c.capsOf == 0 {
		c.capsOf, of = 1, 1
	}
	if c.dials == of && c.capsOf == of {
		set(&c.caps)
	}
}
