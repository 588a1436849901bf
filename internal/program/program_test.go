package program

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestSignals: the first signal asks, the second one ends the process with the
// status that a shell would report.
func TestSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			exited := make(chan int, 1)
			ctx, stop := UntilSignal(t.Context(), func(status int) { exited <- status })
			defer stop()
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				t.Fatal(err)
			}
			if got := <-exited; got != 128+int(s) {
				t.Errorf("exit %d, want %d", got, 128+int(s))
			}
		})
	}
}

// TestVersionText: Berth's version first, then what it is built from.
func TestVersionText(t *testing.T) {
	if got, want := VersionText(), Version()+" (Kubernetes "+KubernetesVersion()+", go"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q first", got, want)
	}
}
