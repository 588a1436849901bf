// Package inflight orders the publishing of capacity after the creation of
// PersistentVolumes: controller/provision announces each provisioning here,
// and controller/capacity waits for those that a reading may already contain.
//
// A capacity read while a volume is being created may already be without its
// bytes. Were it published before the PersistentVolume exists, the scheduler
// would subtract the volume a second time, since it has no allocation count
// for the claim yet.
package inflight

import (
	"context"
	"sync"
)

// Set is the provisionings in flight: between the call of CreateVolume and the
// API server's acknowledgement of the PersistentVolume. The zero Set is empty
// and ready.
type Set struct {
	mu sync.Mutex
	// running holds, guarded by mu, one channel per provisioning in flight,
	// closed at its end.
	running map[chan struct{}]struct{}
}

// Begin announces a provisioning, before its CreateVolume. The returned end
// must be called once, on every path; it may be called again without effect.
func (s *Set) Begin() (end func()) {
	done := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = make(map[chan struct{}]struct{})
	}
	s.running[done] = struct{}{}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, done)
		close(done)
	})
}

// Wait returns when every provisioning that was in flight at the call has
// ended. Later ones do not prolong it. It returns ctx's error if that comes
// first.
func (s *Set) Wait(ctx context.Context) error {
	for _, done := range s.snapshot() {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *Set) snapshot() []chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]chan struct{}, 0, len(s.running))
	for done := range s.running {
		all = append(all, done)
	}
	return all
}
