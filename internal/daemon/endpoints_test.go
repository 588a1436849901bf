package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// get asks an endpoint; what cannot be reached is status 0.
func get(t *testing.T, e *Endpoints, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, "http://"+e.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestLife follows the server through the life of a program.
func TestLife(t *testing.T) {
	broken := true
	want := func(e *Endpoints, when, path string, status int, text string) {
		t.Helper()
		if got, body := get(t, e, path); got != status || !strings.Contains(body, text) {
			t.Errorf("%s, %s: %d %q, want %d with %q", when, path, got, body, status, text)
		}
	}
	ctx, end := context.WithCancel(t.Context())
	var after *Endpoints
	s := daemon(func(ctx context.Context, e *Endpoints) error {
		after = e
		want(e, "at the start", "/healthz", 200, "ok")
		want(e, "at the start", "/readyz", 503, "[-]start: the program is starting")
		want(e, "at the start", "/metrics", 200, `berth_build_info{`)
		e.Ready("driver", func(context.Context) error {
			if broken {
				return errors.New("no answer")
			}
			return nil
		})
		e.Started()
		want(e, "with a broken driver", "/readyz", 503, "[-]driver: no answer")
		want(e, "with a broken driver", "/readyz/start", 200, "ok")
		want(e, "with a broken driver", "/readyz/drivers", 404, "driver, shutdown, start")
		broken = false
		want(e, "ready", "/readyz", 200, "ok")
		want(e, "ready", "/readyz?verbose", 200, "[+]driver\n[+]shutdown\n[+]start\nok")
		own := prometheus.NewRegistry()
		own.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_test_late"}))
		e.Metrics(own)
		want(e, "ready", "/metrics", 200, "berth_test_late 0")
		want(e, "ready", "/metrics", 200, "process_start_time_seconds")
		end()
		<-ctx.Done()
		want(e, "ending", "/readyz", 503, "[-]shutdown: the program is ending")
		want(e, "ending", "/healthz", 200, "ok")
		return nil
	})
	if err := s.serve(ctx); err != nil {
		t.Fatal(err)
	}
	if status, _ := get(t, after, "/healthz"); status != 0 {
		t.Errorf("the server answers %d after the program", status)
	}
}

// TestAddressTaken: nothing is run, and the message names the flag.
func TestAddressTaken(t *testing.T) {
	var config net.ListenConfig
	taken, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := daemon(never(t))
	s.Common.HTTPAddress = taken.Addr().String()
	if err := s.serve(t.Context()); err == nil || !strings.Contains(err.Error(), "--http-address") {
		t.Errorf("got %v", err)
	}
}

// TestNoServer: a program without endpoints runs as well.
func TestNoServer(t *testing.T) {
	s := daemon(func(_ context.Context, e *Endpoints) error {
		e.Started()
		if e.Addr() != "" {
			t.Errorf("listens on %s", e.Addr())
		}
		return nil
	})
	s.Common.HTTPAddress = ""
	if err := s.serve(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestControllerMetrics: another registry shows the controllers' metrics of each
// kind, and no others.
func TestControllerMetrics(t *testing.T) {
	from, to := prometheus.NewRegistry(), prometheus.NewRegistry()
	total := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "controller_runtime_reconcile_total", Help: "h"}, []string{"controller"})
	took := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "controller_runtime_reconcile_time_seconds", Help: "h"})
	from.MustRegister(total, took, prometheus.NewGauge(prometheus.GaugeOpts{Name: "workqueue_depth"}))
	total.WithLabelValues("a").Inc()
	total.WithLabelValues("b").Add(2)
	took.Observe(1)
	to.MustRegister(controllerMetrics{from}, prometheus.NewGauge(prometheus.GaugeOpts{Name: "workqueue_depth"}))
	families, err := to.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		got[f.GetName()] = len(f.GetMetric())
	}
	if got["controller_runtime_reconcile_total"] != 2 || got["controller_runtime_reconcile_time_seconds"] != 1 || got["workqueue_depth"] != 1 {
		t.Errorf("gathered %v", got)
	}
}
