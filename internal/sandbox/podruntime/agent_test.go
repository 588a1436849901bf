package podruntime

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podvolumesv1 "github.com/berth-storage/berth/nodeagent/podvolumes/v1"
)

// fakeAgent serves nodeagent/podvolumes over a real socket, from folders.
type fakeAgent struct {
	podvolumesv1.UnimplementedPodVolumesServer
	dir string

	mu       sync.Mutex
	held     []string   // guarded by mu; pods prepared and not released
	reports  [][]string // guarded by mu
	refuse   error      // guarded by mu; the answer to Prepare
	reported chan struct{}
}

func newFakeAgent(dir string) *fakeAgent {
	return &fakeAgent{dir: dir, reported: make(chan struct{}, 100)}
}

// serve listens until the test ends, or until stop is called, as a crash does.
func (f *fakeAgent) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podvolumesv1.RegisterPodVolumesServer(server, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Stop makes Serve return nil.
		if err := server.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { server.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

func (f *fakeAgent) Prepare(_ context.Context, req *podvolumesv1.PrepareRequest) (*podvolumesv1.PrepareResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, f.refuse
	}
	if uid := req.GetPod().GetUid(); !slices.Contains(f.held, uid) {
		f.held = append(f.held, uid)
	}
	return &podvolumesv1.PrepareResponse{Volumes: []*podvolumesv1.PodVolume{{Name: "data", Path: f.dir}}}, nil
}

func (f *fakeAgent) Release(_ context.Context, req *podvolumesv1.ReleaseRequest) (*podvolumesv1.ReleaseResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = slices.DeleteFunc(f.held, func(uid string) bool { return uid == req.GetPodUid() })
	return &podvolumesv1.ReleaseResponse{}, nil
}

func (f *fakeAgent) Report(_ context.Context, req *podvolumesv1.ReportRequest) (*podvolumesv1.ReportResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reports = append(f.reports, req.GetPodUids())
	f.reported <- struct{}{}
	return &podvolumesv1.ReportResponse{}, nil
}

func (f *fakeAgent) holds() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.held)
}

func runAgent(t *testing.T, socket string) *Agent {
	t.Helper()
	a, err := DialAgent(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

// TestAgentIsToldAfterEveryConnect kills the agent while a pod lives: the next
// one must hear of the pod before anything else.
func TestAgentIsToldAfterEveryConnect(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	first := newFakeAgent("/first")
	stop := first.serve(t, socket)
	a := runAgent(t, socket)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1"}}
	got, err := a.Prepare(t.Context(), pod)
	if err != nil || got["data"] != (Volume{Path: "/first"}) {
		t.Fatalf("Prepare: %v, %v", got, err)
	}
	stop()
	second := newFakeAgent("/second")
	second.serve(t, socket)
	select {
	case <-second.reported:
	case <-time.After(30 * time.Second):
		t.Fatal("the second agent heard nothing")
	}
	if err := a.Release(t.Context(), types.UID("u1")); err != nil {
		t.Fatal(err)
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	second.mu.Lock()
	defer second.mu.Unlock()
	if len(first.reports) != 1 || len(first.reports[0]) != 0 {
		t.Errorf("the first agent was told %v, want one empty report", first.reports)
	}
	if len(second.reports) != 1 || !slices.Equal(second.reports[0], []string{"u1"}) {
		t.Errorf("the second agent was told %v, want the pod that lives", second.reports)
	}
}

// TestPrepareSaysWhatIsMissing holds that the agent's words reach the pod's
// owner, without the transport's.
func TestPrepareSaysWhatIsMissing(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	agent := newFakeAgent("/x")
	agent.refuse = status.Error(codes.DeadlineExceeded, "volume data: not staged yet")
	agent.serve(t, socket)
	a := runAgent(t, socket)
	_, err := a.Prepare(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1"}})
	if err == nil || err.Error() != "volume data: not staged yet" {
		t.Errorf("got %v", err)
	}
}
