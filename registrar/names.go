package registrar

import (
	"context"
	"slices"
	"sync"

	"k8s.io/klog/v2"
)

// names keeps who holds each driver name. Two sockets may announce one name
// while a driver is replaced: the later registration is in force, and when its
// socket goes, the earlier one, if it is still there, is asked to register again.
type names struct {
	mu sync.Mutex
	// byName holds a name from its first registration on. Guarded by mu.
	byName map[string]*name
}

// name is one driver name.
type name struct {
	// turn is held by who talks to the handler about this name; a channel, so
	// that waiting for it can end with a context.
	turn chan struct{}
	// holders registered and did not leave, in order; the last is in force.
	// Guarded by turn.
	holders []holder
}

type holder struct {
	instance *instance
	plugin   Plugin
}

func (n *names) get(driver string) *name {
	n.mu.Lock()
	defer n.mu.Unlock()
	one, ok := n.byName[driver]
	if !ok {
		one = &name{turn: make(chan struct{}, 1)}
		n.byName[driver] = one
	}
	return one
}

// register puts the instance in force for the plugin's name, if the handler
// agrees.
func (n *names) register(ctx context.Context, i *instance, p Plugin, h Handler) error {
	one := n.get(p.Name)
	select {
	case one.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-one.turn }()
	if len(one.holders) > 0 && one.holders[len(one.holders)-1].instance != i {
		klog.FromContext(ctx).Info("a second socket announces the driver, the later one counts",
			"driver", p.Name, "earlier", one.holders[len(one.holders)-1].plugin.Socket)
	}
	if err := h.Register(ctx, p); err != nil {
		return err
	}
	one.drop(i)
	one.holders = append(one.holders, holder{instance: i, plugin: p})
	return nil
}

// leave takes the instance out of a name.
func (n *names) leave(ctx context.Context, i *instance, driver string, h Handler) {
	one := n.get(driver)
	one.turn <- struct{}{}
	defer func() { <-one.turn }()
	last := len(one.holders) - 1
	if last < 0 || one.holders[last].instance != i {
		one.drop(i)
		return
	}
	plugin := one.holders[last].plugin
	one.drop(i)
	h.Deregister(ctx, plugin)
	klog.FromContext(ctx).Info("driver deregistered", "driver", plugin.Name, "socket", plugin.Socket)
	if last = len(one.holders) - 1; last >= 0 {
		select {
		case one.holders[last].instance.again <- struct{}{}:
		default: // it is asked already
		}
	}
}

func (one *name) drop(i *instance) {
	one.holders = slices.DeleteFunc(one.holders, func(h holder) bool { return h.instance == i })
}
