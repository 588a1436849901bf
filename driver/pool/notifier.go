package pool

import "sync"

// Notifier is the OnChange of a pool, for backends to embed. Its zero value is
// ready.
type Notifier struct {
	mu sync.Mutex
	// Both are guarded by mu.
	next      int
	listeners map[int]func()
}

// OnChange implements Pool.
func (n *Notifier) OnChange(fn func()) (stop func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[int]func())
	}
	id := n.next
	n.next++
	n.listeners[id] = fn
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, id)
	}
}

// Notify calls every listener. The caller holds none of its own locks.
func (n *Notifier) Notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, fn := range n.listeners {
		fn()
	}
}
