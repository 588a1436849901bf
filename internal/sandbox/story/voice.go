package story

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// silenceMax is how long the story may be without a word.
const silenceMax = 2 * time.Second

// voice says the story's lines.
type voice struct {
	began time.Time
	stop  chan struct{}
	ended sync.WaitGroup

	mu      sync.Mutex
	out     io.Writer // guarded by mu
	last    time.Time // guarded by mu; of the last line
	waiting string    // guarded by mu; what the story waits for
}

// newVoice makes a voice that says by itself, until close, what the story waits
// for.
func newVoice(out io.Writer, began time.Time) *voice {
	v := &voice{began: began, stop: make(chan struct{}), out: out, last: time.Now()}
	v.ended.Go(func() {
		ticker := time.NewTicker(silenceMax / 4)
		defer ticker.Stop()
		for {
			select {
			case <-v.stop:
				return
			case now := <-ticker.C:
				v.breakSilence(now)
			}
		}
	})
	return v
}

// say tells one line; what it says was checked.
func (v *voice) say(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.waiting = ""
	v.line("ok", fmt.Sprintf(format, args...))
}

// more tells a line that belongs to the one before it.
func (v *voice) more(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.print("             " + fmt.Sprintf(format, args...))
}

// heading begins a step.
func (v *voice) heading(number int, title string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.waiting = ""
	v.print(fmt.Sprintf("\n%d. %s", number, title))
}

// wait notes what the story waits for.
func (v *voice) wait(what string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.waiting = what
}

func (v *voice) breakSilence(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.waiting != "" && now.Sub(v.last) >= silenceMax {
		v.line("…", v.waiting)
	}
}

// line needs mu.
func (v *voice) line(mark, text string) {
	v.print(fmt.Sprintf("%6.1fs  %-2s  %s", time.Since(v.began).Seconds(), mark, text))
}

// print needs mu. A reader of the story who went away does not change it.
func (v *voice) print(text string) {
	v.last = time.Now()
	fmt.Fprintln(v.out, text)
}

func (v *voice) close() {
	close(v.stop)
	v.ended.Wait()
}
