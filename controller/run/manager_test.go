package run_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-storage/berth/controller/run"
)

// newManager is of an API server that is away; adapt changes its options.
func newManager(t *testing.T, adapt func(*ctrl.Options)) manager.Manager {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	o := ctrl.Options{
		Scheme:                 scheme,
		MapperProvider:         func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	}
	if adapt != nil {
		adapt(&o)
	}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// TestEndsBeforeItBegins: whenever the end comes, and whatever the caches still
// lack, it is an end. (Each case that fails hangs.)
func TestEndsBeforeItBegins(t *testing.T) {
	index := func(t *testing.T, mgr manager.Manager) {
		if err := mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.Node{}, "name", func(o client.Object) []string { return []string{o.GetName()} }); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]struct {
		reason string
		with   func(*testing.T, manager.Manager)
		after  time.Duration
	}{
		"ended already":              {reason: "a signal that comes while the program reads its configuration"},
		"ended already, informers":   {reason: "informers that never began", with: index},
		"soon after":                 {reason: "the manager's own start is several steps", after: 50 * time.Microsecond},
		"soon after, informers":      {reason: "the manager's own start is several steps", with: index, after: 50 * time.Microsecond},
		"informers wait for answers": {reason: "an API server that is away", with: index, after: 30 * time.Millisecond},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				mgr := newManager(t, nil)
				if tc.with != nil {
					tc.with(t, mgr)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if tc.after == 0 {
					cancel()
				} else {
					time.AfterFunc(tc.after, cancel)
				}
				if err := run.Manager(ctx, mgr); err != nil {
					t.Fatalf("%s: %v", tc.reason, err)
				}
			}
		})
	}
}

// TestWaitsForItsControllers: what began has ended when Manager returns, and
// what it says of its end is heard.
func TestWaitsForItsControllers(t *testing.T) {
	synced := func(o *ctrl.Options) {
		o.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return &informertest.FakeInformers{}, nil }
	}
	// The end comes from the first thing that runs, whichever of the manager's
	// groups that is in.
	for _, led := range []bool{false, true} {
		t.Run(fmt.Sprintf("asked to end, led %t", led), func(t *testing.T) {
			for range 50 {
				mgr := newManager(t, synced)
				ctx, cancel := context.WithCancel(t.Context())
				w := &worker{led: led, began: cancel}
				if err := mgr.Add(w); err != nil {
					t.Fatal(err)
				}
				if err := run.Manager(ctx, mgr); err != nil || !w.ended {
					t.Fatalf("ended %v, %v", w.ended, err)
				}
			}
		})
	}
	t.Run("failed", func(t *testing.T) {
		mgr := newManager(t, synced)
		broken := errors.New("broken")
		if err := mgr.Add(manager.RunnableFunc(func(context.Context) error { return broken })); err != nil {
			t.Fatal(err)
		}
		if err := run.Manager(t.Context(), mgr); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	})
}

// worker is a runnable that runs until it is told to end.
type worker struct {
	led   bool
	began func()
	ended bool
}

// Start implements manager.Runnable.
func (w *worker) Start(ctx context.Context) error {
	w.began()
	<-ctx.Done()
	w.ended = true
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (w *worker) NeedLeaderElection() bool { return w.led }
