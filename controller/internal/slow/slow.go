// Package slow remembers what a driver refused as infeasible, so that the same
// request is repeated only at a long interval, whatever events arrive in
// between, and a changed request at once.
//
// It is memory only: after a restart every refused request is tried once.
package slow

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Holds is the set of refused requests.
type Holds struct {
	clock    clock.PassiveClock
	interval time.Duration

	mu sync.Mutex
	// held is guarded by mu.
	held map[types.UID]hold
}

type hold struct {
	// of says what was refused; another text is another request.
	of    string
	until time.Time
}

// New makes an empty set. interval is the pause between two tries of the same
// refused request.
func New(c clock.PassiveClock, interval time.Duration) *Holds {
	return &Holds{clock: c, interval: interval, held: make(map[types.UID]hold)}
}

// Hold remembers that the request described by of was refused now. It returns
// how long the request rests.
func (h *Holds) Hold(uid types.UID, of string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[uid] = hold{of: of, until: h.clock.Now().Add(h.interval)}
	return h.interval
}

// Left is how long the request described by of still rests; 0 means that it
// may be made now.
func (h *Holds) Left(uid types.UID, of string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	held, ok := h.held[uid]
	if !ok || held.of != of {
		return 0
	}
	return max(held.until.Sub(h.clock.Now()), 0)
}

// Forget drops what is remembered of an object, when it is gone or served.
func (h *Holds) Forget(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, uid)
}
