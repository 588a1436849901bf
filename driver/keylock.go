package driver

import (
	"context"
	"sync"
)

// keyLock lets one caller at a time hold a key. Its zero value is ready.
type keyLock struct {
	mu sync.Mutex
	// held is guarded by mu. A key that nobody holds or waits for is not in it.
	held map[string]*keyHold
}

type keyHold struct {
	// turn holds one token while the key is free.
	turn chan struct{}
	// users hold the key or wait for it; guarded by keyLock.mu.
	users int
}

// lock waits until the key is free, or returns the context's error.
func (l *keyLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	l.mu.Lock()
	h := l.held[key]
	if h == nil {
		if l.held == nil {
			l.held = make(map[string]*keyHold)
		}
		h = &keyHold{turn: make(chan struct{}, 1)}
		h.turn <- struct{}{}
		l.held[key] = h
	}
	h.users++
	l.mu.Unlock()

	select {
	case <-h.turn:
		return func() {
			h.turn <- struct{}{}
			l.leave(key, h)
		}, nil
	case <-ctx.Done():
		l.leave(key, h)
		return nil, ctx.Err()
	}
}

func (l *keyLock) leave(key string, h *keyHold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.users--
	if h.users == 0 {
		delete(l.held, key)
	}
}
