package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/args"
	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/scheduler/snapshots"
	"github.com/berth-storage/berth/volume"
)

// Name is the plugin's name in a KubeSchedulerConfiguration.
const Name = "BerthVolumes"

// stateKey is where a cycle keeps the plugin's state.
const stateKey fwk.StateKey = Name

// Plugin implements the extension points. Its methods may run in parallel.
type Plugin struct {
	handle  fwk.Handle
	cache   *cache.Cache
	binder  *binder.Binder
	waiting *waiting
	// timeout bounds PreBind.
	timeout time.Duration
	// resizes: the scheduler preempts for pods whose resize is deferred; their
	// volumes are where they are (gate InPlacePodVerticalScalingSchedulerPreemption).
	resizes bool
	// observed is the event that a hint brought the cache up to date with last.
	observed atomic.Pointer[[2]any]
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
	shared *shared
}

// shared is what the profiles of one scheduler have in common.
type shared struct {
	cache   *cache.Cache
	waiting *waiting
	of      informers.SharedInformerFactory
	args    args.Args
}

// New is a frameworkruntime.PluginFactory.
func (f *Factory) New(ctx context.Context, obj runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a, err := decodeArgs(obj)
	if err != nil {
		return nil, fmt.Errorf("args of plugin %s: %w", Name, err)
	}
	s, err := f.share(ctx, a, h)
	if err != nil {
		return nil, fmt.Errorf("starting plugin %s: %w", Name, err)
	}
	p := &Plugin{
		handle: h, cache: s.cache, waiting: s.waiting, timeout: a.BindTimeout(),
		resizes: utilfeature.DefaultFeatureGate.Enabled(features.InPlacePodVerticalScalingSchedulerPreemption),
	}
	p.binder = binder.New(binder.Options{
		Client: h.ClientSet(), Cache: s.cache, Nodes: nodes{h}, Shape: a.Scores(), Clock: clock.RealClock{}, Events: h.EventRecorder(),
	})
	return p, nil
}

// share makes what the profiles have in common with the first of them.
func (f *Factory) share(ctx context.Context, a args.Args, h fwk.Handle) (*shared, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shared != nil && f.shared.of == h.SharedInformerFactory() {
		if !reflect.DeepEqual(f.shared.args.Common(), a.Common()) {
			return nil, errors.New("profiles differ in attachLimitGraceSeconds or sharedPools, which they have in common; give all of them the same")
		}
		return f.shared, nil
	}
	s := &shared{of: h.SharedInformerFactory(), waiting: newWaiting(), args: a}
	wake := func() { s.activate(ctx, h) }
	sources := snapshots.New(ctx, h.KubeConfig(), wake)
	c, err := cache.New(s.of, cache.Options{
		Clock: clock.RealClock{}, Ended: wake, Snapshots: sources, Sharing: a.Sharing(), AttachGrace: a.AttachGrace(),
	})
	if err != nil {
		return nil, err
	}
	if err := s.waiting.follow(s.of.Core().V1().Pods().Informer()); err != nil {
		return nil, err
	}
	s.cache = c
	f.shared = s
	go c.Run(ctx)
	return s, nil
}

// activate retries the pods that wait for volumes. It serves what ends without
// an event that the queue would hear of: a hold, a refusal or a remembered limit
// by time, and what becomes known of a snapshot.
func (s *shared) activate(ctx context.Context, h fwk.Handle) {
	pods := map[string]*corev1.Pod{}
	for _, name := range s.waiting.all() {
		pod, err := s.of.Core().V1().Pods().Lister().Pods(name.Namespace).Get(name.Name)
		if err == nil && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
			pods[name.String()] = pod
		}
	}
	if len(pods) > 0 {
		h.Activate(klog.FromContext(ctx), pods)
	}
}

// bindTimeoutSeconds is the default of the args' field, as upstream's
// VolumeBindingArgs.
const bindTimeoutSeconds = 600

// decodeArgs reads the profile's pluginConfig.
func decodeArgs(obj runtime.Object) (args.Args, error) {
	switch o := obj.(type) {
	case nil:
		return args.Decode(nil, bindTimeoutSeconds)
	case *runtime.Unknown:
		return args.Decode(o.Raw, bindTimeoutSeconds)
	default:
		return args.Args{}, fmt.Errorf("want runtime.Unknown, got %T", obj)
	}
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// SignPod implements fwk.SignPlugin: pods of equal volume sources are judged
// alike (upstream: volumebinding, SignPod). Without it the framework would
// batch no pod of the profile.
func (p *Plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.VolumesSignerName, Value: fwk.VolumesSigner(pod)}}, nil
}

// state is what one cycle keeps between extension points. Filter only reads it:
// a verdict is a function of the question and the node, so that Score and Reserve
// ask again, which costs less than keeping the answers.
type state struct {
	// none: the pod has no volumes that the plugin judges, and nothing else is set.
	none     bool
	question *binder.Question

	said said

	// plan is what Reserve chose; the later points of the cycle run after it.
	plan *binding.BindPlan
}

// Clone implements fwk.StateData. The dry runs of preemption share the state.
func (s *state) Clone() fwk.StateData { return s }

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

// statusOf turns refusals into a status. Evicting pods helps against attach
// limits alone, so only a node refused for nothing else is worth preempting on.
func statusOf(refusals []volume.Refusal) *fwk.Status {
	reasons := make([]string, 0, len(refusals))
	for _, r := range refusals {
		reasons = append(reasons, r.String())
	}
	return fwk.NewStatus(codeOf(refusals), reasons...)
}

func codeOf(refusals []volume.Refusal) fwk.Code {
	for _, r := range refusals {
		if r.Reason != volume.ReasonAttachLimit {
			return fwk.UnschedulableAndUnresolvable
		}
	}
	return fwk.Unschedulable
}

// said are the texts of single refusals in one cycle: thousands of nodes may give
// the same one.
type said struct {
	mu sync.RWMutex
	by map[volume.Refusal][]string
}

// status is statusOf, with the text made for the first node that gives it. A
// status itself is the framework's, which writes into it.
func (s *said) status(refusals []volume.Refusal) *fwk.Status {
	if len(refusals) != 1 {
		return statusOf(refusals)
	}
	s.mu.RLock()
	reasons, known := s.by[refusals[0]]
	s.mu.RUnlock()
	if !known {
		// Full, so that a reason that is appended goes elsewhere.
		reasons = []string{refusals[0].String()}
		s.mu.Lock()
		s.by[refusals[0]] = reasons
		s.mu.Unlock()
	}
	return fwk.NewStatus(codeOf(refusals), reasons...)
}
