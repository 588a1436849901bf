package extender

import (
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
)

// silence is Calls over a fake cluster, with a clock that the test moves.
type silence struct {
	*rig
	*Calls
	time *testclock.FakeClock
	told *events.FakeRecorder
}

// listen follows the pods of the cluster, all of which are seen when it returns.
func listen(t *testing.T, pods ...*corev1.Pod) *silence {
	t.Helper()
	c := pool(t, map[string]string{"n1": "8Gi"})
	for _, pod := range pods {
		c.Put(pod)
	}
	s := &silence{time: testclock.NewFakeClock(time.Now()), told: events.NewFakeRecorder(1000)}
	calls, err := NewCalls(c.Factory.Core().V1().Pods().Informer(), "berth-scheduler", Patience, s.time, s.told)
	if err != nil {
		t.Fatal(err)
	}
	s.Calls = calls
	s.rig = start(t, c)
	s.known(len(pods))
	return s
}

func (s *silence) known(pods int) {
	s.t.Helper()
	s.seen("the pods are known", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting) == pods
	})
}

// TestUncalled: when silence is told, and when not.
func TestUncalled(t *testing.T) {
	cases := map[string]struct {
		reason string
		steps  func(s *silence)
		want   float64
	}{
		"patient":      {"kube-scheduler may be starting", func(s *silence) { s.Active(true); s.time.Step(Patience - time.Second) }, 0},
		"overdue":      {"no kube-scheduler needs so long", func(s *silence) { s.Active(true); s.time.Step(Patience) }, 2},
		"standby":      {"the other replica is called", func(s *silence) { s.time.Step(time.Hour) }, 0},
		"just leader":  {"its turn has begun", func(s *silence) { s.time.Step(time.Hour); s.Active(true); s.time.Step(time.Second) }, 0},
		"leader again": {"a renewed Lease begins no new turn", func(s *silence) { s.Active(true); s.time.Step(Patience); s.Active(true) }, 2},
		"no longer":    {"it lost the Lease", func(s *silence) { s.Active(true); s.time.Step(Patience); s.Active(false) }, 0},
		"called":       {"from now on kube-scheduler tells", func(s *silence) { s.Active(true); s.Called(); s.time.Step(time.Hour) }, 0},
		"called late":  {"it is over", func(s *silence) { s.Active(true); s.time.Step(time.Hour); s.Called(); s.Called() }, 0},
		"new pod":      {"that one has just come", func(s *silence) { s.Active(true); s.time.Step(Patience); s.Put(fakeapi.Pod("new", "a")); s.known(3) }, 2},
		"pod gone":     {"nobody waits for it", func(s *silence) { s.Active(true); s.time.Step(Patience); s.Delete(fakeapi.Pod("web")); s.known(1) }, 1},
		"pod is placed": {"by hand", func(s *silence) {
			s.Active(true)
			s.time.Step(Patience)
			placed := fakeapi.Pod("web", "a")
			placed.Spec.NodeName = "n1"
			s.Put(placed)
			s.known(1)
		}, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := listen(t, fakeapi.Pod("web", "a"), fakeapi.Pod("db", "b"))
			tc.steps(s)
			if got := s.Uncalled(); got != tc.want {
				t.Errorf("%s: %v pods, want %v", tc.reason, got, tc.want)
			}
			if err := s.Check(t.Context()); (err != nil) != (tc.want > 0) {
				t.Errorf("%s: /readyz says %v", tc.reason, err)
			}
		})
	}
}

// TestNotWaiting: pods whose silence means nothing.
func TestNotWaiting(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*corev1.Pod)
	}{
		"no volumes": {"only pods with volumes tell that an extender is missing", func(p *corev1.Pod) { p.Spec.Volumes = nil }},
		"another's":  {"its scheduler has no extender, and need not", func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" }},
		"gated":      {"no scheduler looks at it", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "quota"}} }},
		"leaving":    {"no scheduler looks at it", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }},
		"placed":     {"it has its node", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }},
		"failed":     {"it is over", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := listen(t, fakeapi.Pod("web", "a"))
			s.Active(true)
			changed := fakeapi.Pod("web", "a")
			tc.change(changed)
			s.Put(changed)
			s.known(0)
			s.time.Step(time.Hour)
			if err := s.Check(t.Context()); err != nil {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

// TestToldOnce: each pod has one event, which says what to look for; the first call
// ends the watch.
func TestToldOnce(t *testing.T) {
	var pods []*corev1.Pod
	for i := range toldAtOnce + 1 {
		pods = append(pods, fakeapi.Pod("p"+string(rune('a'+i)), "a"))
	}
	s := listen(t, pods...)
	s.Active(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(t.Context())
	}()
	s.seen("the watch runs", s.time.HasWaiters)
	s.time.Step(Patience)
	s.seen("the first pods are told", func() bool { return len(s.told.Events) == toldAtOnce })
	for range 5 {
		s.time.Step(Patience / looks)
		s.seen("the last pod is told", func() bool { return len(s.told.Events) == toldAtOnce+1 })
	}
	for range toldAtOnce + 1 {
		event := <-s.told.Events
		for _, want := range []string{"Warning ExtenderNotCalled", "pods with volumes (21) wait for scheduler berth-scheduler", "extenders[].urlPrefix", "FailedScheduling"} {
			if !strings.Contains(event, want) {
				t.Fatalf("the event lacks %q: %s", want, event)
			}
		}
	}
	s.Called()
	<-ended
	if n := len(s.told.Events); n > 0 {
		t.Errorf("%d more events", n)
	}
}

// TestFollowLease: the replica beside kube-scheduler's leader is the one to be called;
// where there is no leader each one is, as it never will be.
func TestFollowLease(t *testing.T) {
	lease := func(holder *string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "second-scheduler"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: holder, LeaseDurationSeconds: new(int32(30))},
		}
	}
	client := fake.NewClientset()
	leases := client.CoordinationV1().Leases("kube-system")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const second = time.Second
	time, active := testclock.NewFakeClock(time.Now()), make(chan bool, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- FollowLease(ctx, client, time, "kube-system", "second-scheduler", "host-1", func(now bool) { active <- now })
	}()
	if !<-active {
		t.Error("no Lease: no kube-scheduler runs, which nobody else tells")
	}
	if _, err := leases.Create(ctx, lease(new("host-1_0b1c")), metav1.CreateOptions{}); err != nil || !<-active {
		t.Fatalf("this host's kube-scheduler leads: %v", err)
	}
	for _, step := range []struct {
		reason string
		holder *string
		want   bool
	}{
		{"a host whose name begins alike is another", new("host-10_0b1c"), false},
		{"this host again", new("host-1_77"), true},
		{"another", new("host-2_77"), false},
		{"given back, and nobody takes it", nil, true},
		{"by another way", new(""), true},
		{"another leads", new("host-2_78"), false},
	} {
		if _, err := leases.Update(ctx, lease(step.holder), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := <-active; got != step.want {
			t.Errorf("%s: active %v", step.reason, got)
		}
	}
	// It renews, and then no more.
	time.Step(29 * second)
	if _, err := leases.Update(ctx, lease(new("host-2_78")), metav1.UpdateOptions{}); err != nil || <-active {
		t.Errorf("another renews: %v", err)
	}
	time.Step(29 * second)
	select {
	case now := <-active:
		t.Errorf("within its time: active %v", now)
	default:
	}
	time.Step(second)
	if !<-active {
		t.Error("its time is over, and nobody takes it")
	}
	if _, err := leases.Update(ctx, lease(new("host-3_1")), metav1.UpdateOptions{}); err != nil || <-active {
		t.Errorf("a third takes it: %v", err)
	}
	if err := leases.Delete(ctx, "second-scheduler", metav1.DeleteOptions{}); err != nil || !<-active {
		t.Errorf("deleted: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
