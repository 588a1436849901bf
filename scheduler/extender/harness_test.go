package extender

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-storage/berth/scheduler/args"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// eventually bounds waits for informers; only a broken test waits so long.
const eventually = 30 * time.Second

// rig is a service over a fake cluster.
type rig struct {
	*fakeapi.Cluster
	*Service
	t *testing.T
}

// start makes the service. configure changes what it stands on.
func start(t *testing.T, c *fakeapi.Cluster, configure ...func(*Options)) *rig {
	t.Helper()
	a, err := args.Decode(nil, BindTimeoutSeconds)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Client: c.Client, Informers: c.Factory, Args: a, Clock: clock.RealClock{}}
	for _, f := range configure {
		f(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Ready() {
		t.Error("it is ready before it has read anything")
	}
	c.Factory.Start(t.Context().Done())
	go s.Run(t.Context())
	if !s.WaitForSync(t.Context()) {
		t.Fatal("it is never in sync")
	}
	return &rig{c, s, t}
}

// budget is a bind timeout as no argument can give it.
func budget(d time.Duration) func(*rig) { return func(r *rig) { r.budget = d } }

// pool is a cluster of nodes with room for a class, and what else is given.
func pool(t *testing.T, room map[string]string, more ...runtime.Object) *fakeapi.Cluster {
	objects := []runtime.Object{fakeapi.Driver(driver), fakeapi.Class("fast", driver)}
	for node, size := range room {
		objects = append(objects, fakeapi.Node(node), fakeapi.Capacity("fast", node, size, 5))
	}
	return fakeapi.New(t, append(objects, more...)...)
}

// verdicts are what filter answers for each node: "" where it takes the pod.
func (r *rig) verdicts(pod *corev1.Pod, nodes ...string) map[string]string {
	r.t.Helper()
	result, err := r.Filter(r.t.Context(), pod, nodes)
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]string{}
	for _, n := range *result.NodeNames {
		out[n] = ""
	}
	for n, why := range result.FailedNodes {
		out[n] = "evictable: " + why
	}
	maps.Copy(out, result.FailedAndUnresolvableNodes)
	return out
}

func (r *rig) bind(pod *corev1.Pod, node string) error {
	return r.Bind(r.t.Context(), bindingOf(pod, node))
}

func bindingOf(pod *corev1.Pod, node string) extenderv1.ExtenderBindingArgs {
	return extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node}
}

// bindInVain binds a pod, for whose volumes nobody cares, to node n1. It gives up when what was
// written has come back, and not after a time that a slow machine may need for that.
func (r *rig) bindInVain(pod *corev1.Pod) error {
	const node = "n1"
	ctx, giveUp := context.WithCancel(r.t.Context())
	defer giveUp()
	errs := make(chan error, 1)
	go func() { errs <- r.Bind(ctx, bindingOf(pod, node)) }()
	r.seen("the claims of pod "+pod.Name+" are promised", func() bool {
		return len(errs) > 0 || r.atWork(pod) && !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			name := v.PersistentVolumeClaim.ClaimName
			key := pod.Namespace + "/" + name
			free := r.cache.Volume("free")
			return r.cache.ClaimByKey(key).Annotations[volume.AnnSelectedNode] != node &&
				(free == nil || free.Spec.ClaimRef == nil || free.Spec.ClaimRef.Name != name)
		})
	})
	giveUp()
	return <-errs
}

// atWork reports whether a bind of the pod has promised it its node and goes on.
func (r *rig) atWork(pod *corev1.Pod) bool {
	r.promises.mu.Lock()
	defer r.promises.mu.Unlock()
	pr := r.promises.of[pod.UID]
	return pr != nil && pr.stage == stageAttempt
}

// nodeOf is where the API has the pod.
func (r *rig) nodeOf(pod *corev1.Pod) string {
	o, err := r.Client.Tracker().Get(fakeapi.ResourceOf(pod), pod.Namespace, pod.Name)
	if err != nil {
		r.t.Fatal(err)
	}
	return o.(*corev1.Pod).Spec.NodeName
}

// seen waits until done.
func (r *rig) seen(what string, done func() bool) {
	r.t.Helper()
	deadline := time.After(eventually)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatal("it never was so: " + what)
		}
	}
}

// equal compares.
func equal[T any](t *testing.T, why string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", why, diff)
	}
}

// fakeTime is a clock that the test moves.
func fakeTime() (*testclock.FakeClock, func(*Options)) {
	c := testclock.NewFakeClock(time.Now())
	return c, func(o *Options) { o.Clock = c }
}
