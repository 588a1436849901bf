package oracle

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/berth-storage/berth/scheduler/plugin"
)

// binder is what both volume plugins implement.
//
//nolint:interfacebloat // an extension point is an interface, and they have these
type binder interface {
	fwk.PreFilterPlugin
	fwk.FilterPlugin
	fwk.PreScorePlugin
	fwk.ScorePlugin
	fwk.ReservePlugin
	fwk.PreBindPlugin
	fwk.EnqueueExtensions
}

// rig is one side over a world: upstream's two plugins, or BerthVolumes, which
// does the work of both.
type rig struct {
	*server
	ctx    context.Context
	handle framework.Framework
	binder binder
	// limits is upstream's other plugin, nil for BerthVolumes.
	limits interface {
		fwk.FilterPlugin
		fwk.PreFilterPlugin
		fwk.EnqueueExtensions
	}
	infos []fwk.NodeInfo
	hints []fwk.ClusterEventWithHint
}

// maker makes the plugins of a side.
type maker func(ctx context.Context, r *rig) error

func upstream(ctx context.Context, r *rig) error {
	features := feature.Features{EnableVolumeAttributesClass: true, EnableStorageCapacityScoring: true, EnableVolumeLimitScaling: true}
	p, err := volumebinding.New(ctx, &config.VolumeBindingArgs{BindTimeoutSeconds: 600, Shape: []config.UtilizationShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}}, r.handle, features)
	if err != nil {
		return err
	}
	limits, err := nodevolumelimits.NewCSI(ctx, nil, r.handle, features)
	if err != nil {
		return err
	}
	r.binder, r.limits = p.(*volumebinding.VolumeBinding), limits.(*nodevolumelimits.CSILimits)
	return nil
}

func berth(ctx context.Context, r *rig) error {
	p, err := new(plugin.Factory).New(ctx, nil, r.handle)
	if err != nil {
		return err
	}
	r.binder = p.(*plugin.Plugin)
	return nil
}

// newRig brings a side up over the world as it was, and lets its past happen,
// but for reservations.
func newRig(ctx context.Context, w *world, make maker) (*rig, error) {
	r := &rig{server: newServer(), ctx: ctx}
	snapshot := schedcache.NewSnapshot(w.running, w.nodes)
	handle, err := frameworkruntime.NewFramework(ctx, nil, nil,
		frameworkruntime.WithClientSet(r.client), frameworkruntime.WithInformerFactory(r.factory), frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(r.factory.Storage().V1().CSINodes().Lister())))
	if err != nil {
		return nil, fmt.Errorf("making a framework: %w", err)
	}
	r.handle = handle
	if err := make(ctx, r); err != nil {
		return nil, fmt.Errorf("making the plugins: %w", err)
	}
	if r.hints, err = r.binder.EventsToRegister(ctx); err != nil {
		return nil, fmt.Errorf("asking for hints: %w", err)
	}
	if r.limits != nil {
		also, err := r.limits.EventsToRegister(ctx)
		if err != nil {
			return nil, fmt.Errorf("asking for hints: %w", err)
		}
		r.hints = append(r.hints, also...)
	}
	if r.infos, err = snapshot.NodeInfos().List(); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	slices.SortFunc(r.infos, func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
	r.past(w, r.look, func(o runtime.Object) { r.observe(w, o) })
	return r, nil
}

// look asks about a pod without claims that anybody else has, so that caches
// that fill themselves at the first question do it now.
func (r *rig) look() {
	if r.limits == nil {
		looker := makePod("looker")
		looker.Spec.Volumes = []corev1.Volume{ebsVolume("looker")}
		r.binder.PreFilter(r.ctx, framework.NewCycleState(), looker, nil)
	}
}

// observe tells the side of a changed object, as the queue does. Upstream reads
// its stores each time.
func (r *rig) observe(w *world, o runtime.Object) {
	kinds := map[string]fwk.EventResource{"persistentvolumeclaims": fwk.PersistentVolumeClaim, "persistentvolumes": fwk.PersistentVolume, "CSINode": fwk.CSINode}
	if r.limits != nil {
		return
	}
	for _, h := range r.hints {
		if h.Event.Resource == kinds[resourceOf(o)] && h.QueueingHintFn != nil {
			// The answer does not matter here.
			_, _ = h.QueueingHintFn(klog.FromContext(r.ctx), w.pod, nil, o)
		}
	}
}

// cycle is one pod on its way through a side.
type cycle struct {
	*rig
	pod   *corev1.Pod
	state fwk.CycleState
	// skip: PreFilter said that Filter need not be asked.
	skip, skipLimits bool
}

// begin runs PreFilter.
func (r *rig) begin(pod *corev1.Pod) (*cycle, *fwk.Status) {
	c := &cycle{rig: r, pod: pod, state: framework.NewCycleState()}
	_, s := r.binder.PreFilter(r.ctx, c.state, pod, r.infos)
	c.skip = s.IsSkip()
	if r.limits == nil {
		return c, s
	}
	_, l := r.limits.PreFilter(r.ctx, c.state, pod, r.infos)
	if c.skipLimits = l.IsSkip(); c.skip && !c.skipLimits {
		return c, nil
	}
	return c, s
}

// filter asks both of upstream's plugins, where the framework would stop at the
// first that refuses, as BerthVolumes tells everything.
func (c *cycle) filter(info fwk.NodeInfo) []*fwk.Status {
	var out []*fwk.Status
	if !c.skip {
		out = append(out, c.binder.Filter(c.ctx, c.state, c.pod, info))
	}
	if c.limits != nil && !c.skipLimits {
		out = append(out, c.limits.Filter(c.ctx, c.state, c.pod, info))
	}
	return out
}

func (r *rig) info(node string) fwk.NodeInfo {
	for _, i := range r.infos {
		if i.Node().Name == node {
			return i
		}
	}
	return nil
}

// reserve gives another pod its node.
func (r *rig) reserve(o other) (undo func(), ok bool) {
	pod := o.pod()
	c, s := r.begin(pod)
	if !s.IsSuccess() {
		return nil, false
	}
	for _, s := range c.filter(r.info(o.node)) {
		if !s.IsSuccess() {
			return nil, false
		}
	}
	undo = func() { r.binder.Unreserve(r.ctx, c.state, pod, o.node) }
	s = r.binder.Reserve(r.ctx, c.state, pod, o.node)
	if o.again && s.IsSuccess() {
		undo()
		s = r.binder.Reserve(r.ctx, c.state, pod, o.node)
	}
	if !s.IsSuccess() {
		undo()
		return nil, false
	}
	return undo, true
}

// assume puts another pod into the scheduler's snapshot, as the scheduler does
// after Reserve.
func (r *rig) assume(o other) {
	info, err := framework.NewPodInfo(o.placed())
	if err != nil {
		panic(err)
	}
	r.info(o.node).AddPodInfo(info)
}

// touch changes what another pod holds, in something that does not matter.
func (r *rig) touch(w *world, o other) {
	if o.volume != "" {
		pv := w.volume(o.volume).DeepCopy()
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, "touched", "yes")
		r.observe(w, r.put(pv))
		return
	}
	c := w.claim(o.claim).DeepCopy()
	c.Labels = map[string]string{"touched": "yes"}
	r.observe(w, r.put(c))
}
