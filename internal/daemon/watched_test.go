package daemon

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

// watched is a buffer on whose content a test can wait.
type watched struct {
	mu      sync.Mutex
	buffer  bytes.Buffer  // guarded by mu
	written chan struct{} // guarded by mu; closed and replaced with each write
}

func newWatched() *watched { return &watched{written: make(chan struct{})} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.written)
	w.written = make(chan struct{})
	return w.buffer.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buffer.String()
}

func (w *watched) await(t *testing.T, text string) {
	t.Helper()
	for {
		w.mu.Lock()
		found, next := strings.Contains(w.buffer.String(), text), w.written
		w.mu.Unlock()
		if found {
			return
		}
		select {
		case <-next:
		case <-t.Context().Done():
			t.Fatalf("never said %q:\n%s", text, w)
		}
	}
}
