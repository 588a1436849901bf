package nodeagent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/nodeagent/nodeinfo"
	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/registrar"
)

// askTimeout bounds questions that a driver answers from memory.
const askTimeout = 10 * time.Second

// drivers are the registered drivers, each with one connection. It implements
// registrar.Handler.
type drivers struct {
	info *nodeinfo.Manager
	// changed is told the name of a driver that came or went.
	changed func(name string)
	// options are those of a driver's client; may be nil.
	options func(name string) []csiclient.Option

	mu sync.Mutex
	// byName holds the registered drivers. Guarded by mu.
	byName map[string]*csiclient.Client
}

// Register implements registrar.Handler. The driver is usable only after its
// node is described in the API: a pod could not be scheduled to it before.
func (d *drivers) Register(ctx context.Context, p registrar.Plugin) error {
	var options []csiclient.Option
	if d.options != nil {
		options = d.options(p.Name)
	}
	client, err := csiclient.New(p.Endpoint, options...)
	if err != nil {
		return err
	}
	if err := d.check(ctx, p, client); err != nil {
		closeClient(ctx, p.Name, client)
		return err
	}
	d.mu.Lock()
	before := d.byName[p.Name]
	d.byName[p.Name] = client
	d.mu.Unlock()
	if before != nil {
		closeClient(ctx, p.Name, before)
	}
	d.changed(p.Name)
	return nil
}

func (d *drivers) check(ctx context.Context, p registrar.Plugin, client *csiclient.Client) error {
	askCtx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	name, err := client.DriverName(askCtx)
	if err != nil {
		return err
	}
	if name != p.Name {
		return fmt.Errorf("the driver at %s calls itself %q, but was announced as %q", p.Endpoint, name, p.Name)
	}
	return d.info.Register(ctx, name, client.Node())
}

// Deregister implements registrar.Handler. Calls in flight end as uncertain.
func (d *drivers) Deregister(ctx context.Context, p registrar.Plugin) {
	d.mu.Lock()
	client := d.byName[p.Name]
	delete(d.byName, p.Name)
	d.mu.Unlock()
	if client != nil {
		closeClient(ctx, p.Name, client)
	}
	d.info.Deregister(p.Name)
	d.changed(p.Name)
}

func (d *drivers) get(name string) *csiclient.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byName[name]
}

// state is what the plan needs to know of a driver; the client is nil unless
// the driver is registered.
func (d *drivers) state(ctx context.Context, name string) (plan.Driver, *csiclient.Client, error) {
	client := d.get(name)
	if client == nil {
		return plan.Driver{}, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s := plan.Driver{Registered: true}
	var err error
	if s.Stages, err = client.NodeHas(ctx, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME); err != nil {
		return plan.Driver{}, nil, err
	}
	if s.Grows, err = client.NodeHas(ctx, csi.NodeServiceCapability_RPC_EXPAND_VOLUME); err != nil {
		return plan.Driver{}, nil, err
	}
	return s, client, nil
}

// closeAll ends every connection.
func (d *drivers) closeAll(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, client := range d.byName {
		closeClient(ctx, name, client)
	}
	clear(d.byName)
}

func closeClient(ctx context.Context, name string, client *csiclient.Client) {
	if err := client.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "closing the connection to a driver failed", "driver", name)
	}
}
