package podvolumes

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berth-storage/berth/nodeagent/plan"
	podvolumesv1 "github.com/berth-storage/berth/nodeagent/podvolumes/v1"
)

var pod = plan.Pod{Namespace: "default", Name: "web-0", UID: "uid"}

// agent plays a list of states, one for each look; between two looks something
// "changed". The last state stays.
type agent struct {
	states  []Status
	bound   bool
	err     error
	gives   []bool // answers of HandOut
	done    []string
	forever chan struct{}
}

func (a *agent) Status(string) (Status, <-chan struct{}) {
	now := a.states[0]
	if len(a.states) == 1 {
		return now, a.forever
	}
	a.states = a.states[1:]
	changed := make(chan struct{})
	close(changed)
	return now, changed
}

func (a *agent) Bound(context.Context, plan.Pod) (bool, error) { return a.bound, a.err }

func (a *agent) HandOut(uid string) (bool, error) {
	a.done = append(a.done, "hand out "+uid)
	given := true
	if len(a.gives) > 0 {
		given, a.gives = a.gives[0], a.gives[1:]
	}
	return given, a.err
}

func (a *agent) Release(uid string) error { a.done = append(a.done, "release "+uid); return a.err }

func (a *agent) Report(uids []string) error {
	a.done = append(a.done, "report "+strings.Join(uids, ","))
	return a.err
}

func ready() Status {
	return Status{Synced: true, Found: true, Pod: pod, State: plan.PodActive, Volumes: []Volume{
		{Name: "b", Ready: true, Path: "/b"}, {Name: "a", Ready: true, Path: "/a", Block: true, ReadOnly: true},
	}}
}

func waiting() Status {
	s := ready()
	s.Volumes[1] = Volume{Name: "a", Why: "the tide is out"}
	return s
}

func TestPrepare(t *testing.T) {
	whole := &podvolumesv1.PrepareResponse{Volumes: []*podvolumesv1.PodVolume{
		{Name: "b", Path: "/b"}, {Name: "a", Path: "/a", Block: true, ReadOnly: true},
	}}
	with := func(s Status, change func(*Status)) Status { change(&s); return s }
	cases := map[string]struct {
		reason   string
		agent    agent
		want     *podvolumesv1.PrepareResponse
		wantCode codes.Code
		wantText string
		wantDone []string
	}{
		"Ready":       {"handed out before the answer", agent{states: []Status{ready()}}, whole, codes.OK, "", []string{"hand out uid"}},
		"Waits":       {"until the agent knows the pods, the pod and its volumes", agent{bound: true, states: []Status{{}, {Synced: true}, waiting(), ready()}}, whole, codes.OK, "", []string{"hand out uid"}},
		"LostOne":     {"a volume that went between look and hand-out is waited for", agent{states: []Status{ready(), ready()}, gives: []bool{false, true}}, whole, codes.OK, "", []string{"hand out uid", "hand out uid"}},
		"NoVolumes":   {"a pod without CSI volumes has them all", agent{states: []Status{{Synced: true, Found: true, Pod: pod, State: plan.PodActive}}}, &podvolumesv1.PrepareResponse{}, codes.OK, "", []string{"hand out uid"}},
		"Deadline":    {"names the missing volume and why", agent{states: []Status{waiting()}}, nil, codes.Canceled, `volume "a": the tide is out`, nil},
		"DeadlineRef": {"before the agent has read anything", agent{states: []Status{{}}}, nil, codes.Canceled, "not read the node's pods", nil},
		"Unseen":      {"the agent's list lags", agent{bound: true, states: []Status{{Synced: true}}}, nil, codes.Canceled, "not seen the pod", nil},
		"NotFound":    {"the API server does not know it either", agent{states: []Status{{Synced: true}}}, nil, codes.NotFound, "uid", nil},
		"OtherName":   {"the uid is another pod's", agent{states: []Status{with(ready(), func(s *Status) { s.Pod.Name = "web-1" })}}, nil, codes.NotFound, "default/web-0", nil},
		"APIDown":     {"not found is not guessed", agent{err: errors.New("no route"), states: []Status{{Synced: true}}}, nil, codes.Unavailable, "no route", nil},
		"Released":    {"it is over", agent{states: []Status{with(ready(), func(s *Status) { s.Released = true })}}, nil, codes.FailedPrecondition, "released", nil},
		"Deleting":    {"too late to start", agent{states: []Status{with(ready(), func(s *Status) { s.State = plan.PodDeleting })}}, nil, codes.FailedPrecondition, "deleting", nil},
		"DeletingAgain": {
			"but a runtime that restarts learns where its pod's volumes are",
			agent{states: []Status{with(ready(), func(s *Status) { s.State, s.HandedOut = plan.PodDeleting, true })}},
			whole, codes.OK, "",
			[]string{"hand out uid"},
		},
		"DiskFull": {"no answer without the durable mark", agent{err: errors.New("disk full"), states: []Status{ready()}}, nil, codes.Unavailable, "disk full", []string{"hand out uid"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.wantCode == codes.Canceled {
				cancel() // the caller gives up at once: what it hears is what was known
			}
			got, err := NewServer(&c.agent).Prepare(ctx, &podvolumesv1.PrepareRequest{
				Pod: &podvolumesv1.PodRef{Namespace: pod.Namespace, Name: pod.Name, Uid: pod.UID},
			})
			if status.Code(err) != c.wantCode || err != nil && !strings.Contains(err.Error(), c.wantText) {
				t.Fatalf("%s: error %v, want %s with %q", c.reason, err, c.wantCode, c.wantText)
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if diff := cmp.Diff(c.wantDone, c.agent.done); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	held := Status{Held: []string{"volume d^h: the driver is away"}}
	a := &agent{states: []Status{held, held, {}}}
	if _, err := NewServer(a).Release(t.Context(), &podvolumesv1.ReleaseRequest{PodUid: "uid"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"release uid"}, a.done); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := NewServer(&agent{states: []Status{held}}).Release(ctx, &podvolumesv1.ReleaseRequest{PodUid: "uid"})
	if err == nil || !strings.Contains(err.Error(), "the driver is away") {
		t.Errorf("a release that does not end: %v", err)
	}
	if _, err := NewServer(&agent{}).Release(t.Context(), &podvolumesv1.ReleaseRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a release of nobody: %v", err)
	}
}

func TestServeOnASocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "berth-pv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "deep", "podvolumes.sock")
	a := &agent{states: []Status{{}}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, socket, a) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := podvolumesv1.NewPodVolumesClient(conn).Report(t.Context(), &podvolumesv1.ReportRequest{PodUids: []string{"a", "b"}}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(socket)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("socket %v %v, want it closed to others", info, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if diff := cmp.Diff([]string{"report a,b"}, a.done); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
