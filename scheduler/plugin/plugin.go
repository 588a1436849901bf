// Package plugin is BerthVolumes, a kube-scheduler plugin that takes the place
// of VolumeBinding and NodeVolumeLimits in a profile. It is an adapter: it asks
// scheduler/cache for the state, scheduler/binding for the verdict, and performs
// the plan that comes out of it. It is the only importer of the scheduler
// framework.
//
// The flow of one pod, by extension point:
//
//	PreFilter         the pod's claims, classified, and a snapshot for the cycle
//	Filter            a verdict for each node (parallel; no side effect)
//	PreScore, Score   the node whose storage stays emptiest
//	Reserve           the plan becomes visible to every later decision
//	PreBindPreFlight  is there anything to write or to wait for?
//	PreBind           the plan is written, then awaited by informer events
//	Unreserve         undoes Reserve, in memory; nothing in the API is undone
//
// Intended differences from upstream, beside those of scheduler/binding:
//
//   - PreBind waits for informer events and never polls; it repeats a write that
//     met another version, and recognises a claim recreated under its name.
//   - Reserve may follow Unreserve with the same state and reserves again.
//   - A claim selected for the node already is not asked for capacity again: the
//     ledger holds its bytes.
//   - Hints look at class and pool, wake on deletions that end holds, and wake
//     pods with claims when a CSIDriver stops tracking capacity.
//   - Attach limits are counted from the pods of the NodeInfo alone, so that
//     preemption can succeed; VolumeAttachments are not counted yet. A missing
//     driver is unresolvable: evicting pods does not install it.
//   - In-tree volumes are not translated to CSI yet.
package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// Name is the plugin's name in a KubeSchedulerConfiguration.
const Name = "BerthVolumes"

// stateKey is where a cycle keeps the plugin's state.
const stateKey fwk.StateKey = Name

// Plugin implements the extension points. Its methods may run in parallel.
type Plugin struct {
	handle  fwk.Handle
	client  kubernetes.Interface
	cache   *cache.Cache
	timeout time.Duration
}

var (
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PreScorePlugin    = (*Plugin)(nil)
	_ fwk.ScorePlugin       = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.PreBindPlugin     = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
	_ fwk.SignPlugin        = (*Plugin)(nil)
)

// Factory makes the plugin for each profile of one scheduler. All of them share
// one cache: two profiles must not promise the same bytes twice.
type Factory struct {
	mu sync.Mutex
	// Guarded by mu.
	shared *cache.Cache
	of     informers.SharedInformerFactory
}

// New is a frameworkruntime.PluginFactory.
func (f *Factory) New(ctx context.Context, obj runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	args, err := decodeArgs(obj)
	if err != nil {
		return nil, fmt.Errorf("args of plugin %s: %w", Name, err)
	}
	c, err := f.cacheFor(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("starting plugin %s: %w", Name, err)
	}
	return &Plugin{
		handle: h, client: h.ClientSet(), cache: c,
		timeout: time.Duration(*args.BindTimeoutSeconds) * time.Second,
	}, nil
}

func (f *Factory) cacheFor(ctx context.Context, h fwk.Handle) (*cache.Cache, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shared != nil && f.of == h.SharedInformerFactory() {
		return f.shared, nil
	}
	c, err := cache.New(h.SharedInformerFactory(), clock.RealClock{}, func() { activatePending(ctx, h) })
	if err != nil {
		return nil, err
	}
	f.shared, f.of = c, h.SharedInformerFactory()
	go c.Run(ctx)
	return c, nil
}

// activatePending retries the pods that wait for a volume. It serves the end of
// holds that only time ends, for which the queue gets no event.
func activatePending(ctx context.Context, h fwk.Handle) {
	pods, err := h.SharedInformerFactory().Core().V1().Pods().Lister().List(labels.Everything())
	if err != nil {
		klog.FromContext(ctx).Error(err, "could not list pods to retry after a hold ended")
		return
	}
	waiting := map[string]*v1.Pod{}
	for _, pod := range pods {
		if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(claimRefs(pod)) > 0 {
			waiting[pod.Namespace+"/"+pod.Name] = pod
		}
	}
	if len(waiting) > 0 {
		h.Activate(klog.FromContext(ctx), waiting)
	}
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// SignPod implements fwk.SignPlugin: pods of equal volume sources are judged
// alike (upstream: volumebinding, SignPod). Without it the framework would
// batch no pod of the profile.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.VolumesSignerName, Value: fwk.VolumesSigner(pod)}}, nil
}

// state is what one cycle keeps between extension points.
type state struct {
	// none: the pod has no claims, and nothing else is set.
	none     bool
	question cache.Question
	wanted   map[volume.Key]struct{}

	mu sync.Mutex
	// verdicts of the nodes that passed Filter, by name, guarded by mu.
	verdicts map[string]binding.Verdict
	// plan is what Reserve chose; the later points of the cycle run after it.
	plan *binding.BindPlan
}

// Clone implements fwk.StateData. The dry runs of preemption share the state:
// a verdict depends on the node and the snapshot, not on the pods there.
func (s *state) Clone() fwk.StateData { return s }

func (s *state) keep(node string, v binding.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verdicts[node] = v
}

func (s *state) verdict(node string) (binding.Verdict, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.verdicts[node]
	return v, ok
}

func readState(cs fwk.CycleState) (*state, error) {
	data, err := cs.Read(stateKey)
	if err != nil {
		return nil, fmt.Errorf("reading the state of plugin %s: %w", Name, err)
	}
	s, ok := data.(*state)
	if !ok {
		return nil, fmt.Errorf("state of plugin %s is a %T", Name, data)
	}
	return s, nil
}

func nodeOf(n *v1.Node) binding.Node { return binding.Node{Name: n.Name, Labels: n.Labels} }

// statusOf turns refusals into a status. Evicting pods helps against attach
// limits alone, so only a node refused for nothing else is worth preempting on.
func statusOf(refusals []volume.Refusal) *fwk.Status {
	code := fwk.Unschedulable
	reasons := make([]string, 0, len(refusals))
	for _, r := range refusals {
		if r.Reason != volume.ReasonAttachLimit {
			code = fwk.UnschedulableAndUnresolvable
		}
		reasons = append(reasons, r.String())
	}
	return fwk.NewStatus(code, reasons...)
}
