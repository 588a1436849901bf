package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

const (
	// checkTimeout bounds one check; a kubelet's probe waits longer.
	checkTimeout = 2 * time.Second
	// lastAnswers is for requests in flight when the program ends.
	lastAnswers = time.Second
)

// startCheck is the check that fails until Started.
const startCheck = "start"

// Check tells whether a part of the program can do its work.
type Check func(ctx context.Context) error

// Endpoints is the program's one HTTP server: /healthz as long as the process
// lives, /readyz by named checks, and /metrics. It answers before anything else
// of the program runs, and is the last to end. A nil listener is a program
// without it.
type Endpoints struct {
	listener net.Listener
	server   *http.Server

	mu sync.Mutex
	// checks are those of /readyz. Guarded by mu.
	checks map[string]Check
	// metrics are all sources of /metrics. Guarded by mu.
	metrics prometheus.Gatherers
}

// listen takes the address; ctx is the life of the program.
func listen(ctx context.Context, address string) (*Endpoints, error) {
	own := prometheus.NewRegistry()
	own.MustRegister(BuildInfo())
	e := &Endpoints{
		checks: map[string]Check{
			startCheck: func(context.Context) error { return errors.New("the program is starting") },
			"shutdown": func(context.Context) error {
				if ctx.Err() != nil {
					return errors.New("the program is ending")
				}
				return nil
			},
		},
		// controller-runtime's own holds the controllers, their queues, the API
		// client, Go and the process.
		metrics: prometheus.Gatherers{own, ctrlmetrics.Registry},
	}
	if address == "" {
		return e, nil
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--http-address: %w", err)
	}
	e.listener = listener
	e.server = &http.Server{Handler: e.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	return e, nil
}

// Addr is where the server listens; empty if nowhere.
func (e *Endpoints) Addr() string {
	if e.listener == nil {
		return ""
	}
	return e.listener.Addr().String()
}

// Ready adds a check to /readyz.
func (e *Endpoints) Ready(name string, check Check) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checks[name] = check
}

// Started says that every part is made and every check added.
func (e *Endpoints) Started() { e.Ready(startCheck, func(context.Context) error { return nil }) }

// Metrics adds a source to /metrics.
func (e *Endpoints) Metrics(source prometheus.Gatherer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.metrics = append(e.metrics, source)
}

// sources are those of the moment.
func (e *Endpoints) sources() prometheus.Gatherers {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.metrics)
}

// serve serves until close; the channel gets an error if it ends before.
func (e *Endpoints) serve() <-chan error {
	failed := make(chan error, 1)
	if e.server == nil {
		return failed
	}
	go func() {
		if err := e.server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	return failed
}

// close ends the server; ctx outlives the program, whose time is over.
func (e *Endpoints) close(ctx context.Context) {
	if e.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastAnswers)
	defer cancel()
	if err := e.server.Shutdown(ctx); err != nil {
		_ = e.server.Close() // the process ends
	}
}

func (e *Endpoints) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { e.readyz(w, r, "") })
	mux.HandleFunc("GET /readyz/{check}", func(w http.ResponseWriter, r *http.Request) { e.readyz(w, r, r.PathValue("check")) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		promhttp.HandlerFor(e.sources(), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
	})
	return mux
}

// readyz answers 200 if every check holds, or the one asked for, and 503 else.
// What fails is always said; ?verbose also says what holds.
func (e *Endpoints) readyz(w http.ResponseWriter, r *http.Request, only string) {
	e.mu.Lock()
	checks := maps.Clone(e.checks)
	e.mu.Unlock()
	names := slices.Sorted(maps.Keys(checks))
	if only != "" {
		if checks[only] == nil {
			write(w, http.StatusNotFound, fmt.Sprintf("no check %q; there are %s\n", only, strings.Join(names, ", ")))
			return
		}
		names = []string{only}
	}
	var lines strings.Builder
	status, last := http.StatusOK, "ok\n"
	verbose := r.URL.Query().Has("verbose")
	for _, name := range names {
		if err := run(r.Context(), checks[name]); err != nil {
			status, last = http.StatusServiceUnavailable, "not ready\n"
			fmt.Fprintf(&lines, "[-]%s: %v\n", name, err)
		} else if verbose {
			fmt.Fprintf(&lines, "[+]%s\n", name)
		}
	}
	write(w, status, lines.String()+last)
}

func run(ctx context.Context, check Check) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return check(ctx)
}

func write(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// Who asked is gone if this fails.
	_, _ = w.Write([]byte(text))
}
