package plugin

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// eventually bounds waits for informers; only a broken test waits so long.
const eventually = 30 * time.Second

const driverName = volume.DriverName

// cluster is the API server that the plugin stands on.
type cluster struct {
	*fakeapi.Cluster
	t *testing.T
}

func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	return &cluster{fakeapi.New(t, objects...), t}
}

// rig is the plugin on the real framework runtime.
type rig struct {
	*cluster
	framework framework.Framework
	plugin    *Plugin
	events    *events.FakeRecorder
	ctx       context.Context
}

// start brings the plugin up over the cluster. Nodes and the pods on them are
// the scheduler's own snapshot of the cycle.
func (c *cluster) start(ctx context.Context, onNodes ...*corev1.Pod) *rig {
	c.t.Helper()
	r := &rig{cluster: c, ctx: ctx, events: events.NewFakeRecorder(16)}
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var nodes []*corev1.Node
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	r.framework, err = tf.NewFramework(ctx, []tf.RegisterPluginFunc{
		tf.RegisterQueueSortPlugin(queuesort.Name, queuesort.New),
		tf.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
		tf.RegisterPluginAsExtensions(Name, func(ctx context.Context, o runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			p, err := new(Factory).New(ctx, o, h)
			if err == nil {
				r.plugin = p.(*Plugin)
			}
			return p, err
		}, "PreFilter", "Filter", "PreScore", "Score", "Reserve", "PreBind"),
	}, "berth-scheduler",
		frameworkruntime.WithClientSet(c.Client), frameworkruntime.WithInformerFactory(c.Factory),
		frameworkruntime.WithEventRecorder(r.events),
		frameworkruntime.WithSnapshotSharedLister(schedcache.NewSnapshot(onNodes, nodes)),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(c.Factory.Storage().V1().CSINodes().Lister())),
	)
	if err != nil {
		c.t.Fatal(err)
	}
	c.Factory.Start(ctx.Done())
	c.Factory.WaitForCacheSync(ctx.Done())
	// The events of the first list, too: a late one would be taken for the test's.
	r.plugin.cache.WaitForSync(ctx)
	return r
}

// rebind gives the plugin a binder with other options.
func (r *rig) rebind(change func(*binder.Options)) {
	o := binder.Options{
		Client: r.Client, Cache: r.plugin.cache, Nodes: nodes{r.plugin.handle}, Shape: binding.DefaultShape(), Clock: clock.RealClock{}, Events: r.events,
	}
	change(&o)
	r.plugin.binder = binder.New(o)
}

// cycle is one pod on its way through the framework.
type cycle struct {
	*rig
	pod   *corev1.Pod
	state fwk.CycleState
}

// judge runs PreFilter and Filter, and returns what each node answered, in
// words; a node that passed is not in it.
func (r *rig) judge(pod *corev1.Pod) (*cycle, map[string]string) {
	r.t.Helper()
	cy := &cycle{rig: r, pod: pod, state: framework.NewCycleState()}
	refused := map[string]string{}
	infos, err := r.framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		r.t.Fatal(err)
	}
	_, status, _ := r.framework.RunPreFilterPlugins(r.ctx, cy.state, pod)
	for _, info := range infos {
		s := status
		if s.IsSuccess() {
			s = r.framework.RunFilterPlugins(r.ctx, cy.state, pod, info)
		}
		if !s.IsSuccess() {
			refused[info.Node().Name] = s.Code().String() + ": " + s.Message()
		}
	}
	return cy, refused
}

func (cy *cycle) reserve(node string) *fwk.Status {
	return cy.framework.RunReservePluginsReserve(cy.ctx, cy.state, cy.pod, node)
}

func (cy *cycle) unreserve() {
	cy.framework.RunReservePluginsUnreserve(cy.ctx, cy.state, cy.pod, "n1")
}

func (cy *cycle) bind(ctx context.Context, node string) *fwk.Status {
	if s := cy.framework.RunPreBindPreFlights(ctx, cy.state, cy.pod, node); !s.IsSuccess() {
		return s
	}
	return cy.framework.RunPreBindPlugins(ctx, cy.state, cy.pod, node)
}

// seen waits until the informers and the cache have what the API has.
func (r *rig) seen(done func() bool) {
	r.t.Helper()
	deadline := time.After(eventually)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatal("the informers did not catch up")
		}
	}
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
