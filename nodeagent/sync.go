package nodeagent

import (
	"context"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/nodeagent/apply"
	"github.com/berth-storage/berth/nodeagent/desired"
	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

// progress is how far a volume is, as of its last plan in this run.
type progress struct {
	plan plan.Plan
	// failed is what the last step ended with; nil after a success.
	failed *apply.StepError
	// broken is why there could be no plan; nil if there is one.
	broken error
}

// work takes volumes from the queue until it is shut down. The queue gives a
// volume to one worker at a time.
func (a *Agent) work(ctx context.Context) {
	for {
		key, shutdown := a.queue.Get()
		if shutdown {
			return
		}
		ctx := klog.NewContext(ctx, klog.FromContext(ctx).WithValues("driver", key.Driver, "volumeID", key.Handle))
		switch again, err := a.sync(ctx, key); {
		case ctx.Err() != nil:
		case err != nil:
			klog.FromContext(ctx).Error(err, "working on a volume failed", "attempt", a.queue.NumRequeues(key)+1)
			a.queue.AddRateLimited(key)
		case again:
			a.queue.Forget(key)
			a.queue.Add(key)
		default:
			a.queue.Forget(key)
		}
		a.queue.Done(key)
	}
}

// sync plans one volume and carries the plan out. again asks for another plan:
// a plan that was carried out is followed by one that shows it.
func (a *Agent) sync(ctx context.Context, key volume.Key) (again bool, err error) {
	in, client, err := a.gather(ctx, key)
	if err != nil {
		a.setProgress(key, progress{broken: err})
		return false, err
	}
	now := progress{plan: plan.Next(in)}
	if len(now.plan.Steps) > 0 {
		now.failed = a.lastFailure(key) // until a step succeeds, it is the news
	}
	a.tellWaits(in, now.plan.Waits, a.setProgress(key, now))
	for _, step := range now.plan.Steps {
		klog.FromContext(ctx).V(2).Info("step", "step", step.String())
		// A nil *Client in the interface would not be nil.
		var driver apply.Driver
		if client != nil {
			driver = client
		}
		if err := a.runner.Run(ctx, step, in.Wanted, driver); err != nil {
			errors.As(err, &now.failed)
			a.setProgress(key, now)
			a.tellFailure(in, now.failed)
			if step.Op == plan.OpPublish {
				a.queueOthers(step.Pod, key)
			}
			return false, err
		}
		a.tellSuccess(in, step)
	}
	if len(now.plan.Steps) == 0 {
		if in.Wanted == nil && in.Record.Empty() {
			a.dropProgress(key)
		}
		return false, nil
	}
	now.failed = nil
	a.setProgress(key, now)
	return true, nil
}

// gather reads everything that the plan may look at.
func (a *Agent) gather(ctx context.Context, key volume.Key) (plan.Input, *csiclient.Client, error) {
	// The snapshot comes before the record: a pod that is gone by then cannot
	// have been handed a volume later than the record shows.
	snapshot := a.source.Snapshot()
	in := plan.Input{
		Root:     a.cfg.Root,
		Wanted:   a.withoutReleased(snapshot.Volumes[key]),
		Synced:   snapshot.Settled,
		Record:   a.store.Get(key),
		Mounted:  make(map[string]bool),
		PodState: make(map[string]plan.PodState),
	}
	in.Former = a.former(in.Wanted)
	for uid := range in.Record.Pods {
		in.PodState[uid] = snapshot.PodState(uid)
	}
	if !in.Record.Empty() {
		rows, err := a.cfg.Host.MountsUnder(a.cfg.Root)
		if err != nil {
			return in, nil, err
		}
		for _, m := range rows {
			in.Mounted[m.Target] = true
		}
	}
	var err error
	var client *csiclient.Client
	in.Driver, client, err = a.drivers.state(ctx, key.Driver)
	return in, client, err
}

// former finds the pods that have another volume under the name of this one.
func (a *Agent) former(w *plan.Wanted) map[string]volume.Key {
	if w == nil {
		return nil
	}
	former := make(map[string]volume.Key)
	for _, u := range w.Pods {
		for _, key := range a.store.Holding(u.Pod.UID) {
			if key != w.Key && a.store.Get(key).HoldsFor(u) {
				former[u.Pod.UID] = key
			}
		}
	}
	return former
}

// queueOthers queues the volumes that the pod now wants besides key: one of them
// may have waited for what the pod had, or might have had, under key.
func (a *Agent) queueOthers(uid string, key volume.Key) {
	for _, v := range a.source.Snapshot().Pods[uid].Volumes {
		if v.Problem == nil && v.Key != key {
			a.queue.Add(v.Key)
		}
	}
}

// withoutReleased takes released pods out of a Wanted, by copy.
func (a *Agent) withoutReleased(w *plan.Wanted) *plan.Wanted {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w == nil || len(a.released) == 0 {
		return w
	}
	own := *w
	own.Pods = slices.DeleteFunc(slices.Clone(w.Pods), func(u plan.PodUse) bool { return a.released[u.Pod.UID] })
	if len(own.Pods) == 0 {
		return nil
	}
	return &own
}

func (a *Agent) setProgress(key volume.Key, now progress) (before progress) {
	a.mu.Lock()
	before = a.volumes[key]
	a.volumes[key] = now
	a.mu.Unlock()
	a.changes.send()
	return before
}

func (a *Agent) dropProgress(key volume.Key) {
	a.mu.Lock()
	delete(a.volumes, key)
	a.mu.Unlock()
	a.changes.send()
}

func (a *Agent) lastFailure(key volume.Key) *apply.StepError {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.volumes[key].failed
}

// driverChanged queues the volumes of a driver.
func (a *Agent) driverChanged(name string) {
	for _, key := range a.known() {
		if key.Driver == name {
			a.queue.Add(key)
		}
	}
}

// known are the volumes that are wanted or recorded.
func (a *Agent) known() []volume.Key {
	keys := make(map[volume.Key]bool)
	for key := range a.source.Snapshot().Volumes {
		keys[key] = true
	}
	for _, key := range a.store.Keys() {
		keys[key] = true
	}
	return slices.Collect(maps.Keys(keys))
}

// desiredChanged queues the volumes that a new snapshot is about.
func (a *Agent) desiredChanged(before, now *desired.Snapshot) {
	for key, w := range now.Volumes {
		if !equality.Semantic.DeepEqual(w, before.Volumes[key]) {
			a.queue.Add(key)
		}
	}
	for key := range before.Volumes {
		if now.Volumes[key] == nil {
			a.queue.Add(key)
		}
	}
	for _, key := range a.store.Keys() {
		if before.Settled != now.Settled || a.podsChanged(key, before, now) {
			a.queue.Add(key)
		}
	}
	a.forgetReleased(now)
	a.tellProblems(before, now)
	a.changes.send()
}

func (a *Agent) podsChanged(key volume.Key, before, now *desired.Snapshot) bool {
	for uid := range a.store.Get(key).Pods {
		if before.PodState(uid) != now.PodState(uid) {
			return true
		}
	}
	return false
}

// forgetReleased drops released pods whose objects are gone.
func (a *Agent) forgetReleased(now *desired.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.released {
		if now.PodState(uid) == plan.PodAbsent {
			delete(a.released, uid)
		}
	}
}
