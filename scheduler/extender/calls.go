package extender

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/binder"
)

// Patience is how long pods wait uncalled for before it is told, unless configured
// otherwise. A kube-scheduler tries a pod within seconds.
const Patience = time.Minute

const (
	// looks is how often patience is looked at while it lasts.
	looks = 4
	// toldAtOnce bounds the events of one look; the other pods' follow.
	toldAtOnce = 20
)

// Calls notices that kube-scheduler never calls though pods with volumes wait for it.
// It knows no other sign than silence, so that it says which reasons silence has. The
// first call ends it for good: from then on kube-scheduler tells what is wrong.
type Calls struct {
	clock     clock.WithTicker
	events    events.EventRecorder
	scheduler string
	patience  time.Duration

	mu sync.Mutex
	// Guarded by mu. waiting: the scheduler's unplaced pods with volumes. active:
	// since when this replica is the one to be called, zero while it is not.
	waiting map[types.UID]*waitingPod
	active  time.Time
	called  bool
	// heard is closed by the first call.
	heard chan struct{}
}

// waitingPod is a pod, since when it is known, and whether it has had its event.
type waitingPod struct {
	pod   *corev1.Pod
	since time.Time
	told  bool
}

// NewCalls follows the pods of an informer that name the scheduler, which is the one
// whose configuration has this extender. They may wait for as long as patience.
func NewCalls(pods toolscache.SharedIndexInformer, scheduler string, patience time.Duration, c clock.WithTicker, recorder events.EventRecorder) (*Calls, error) {
	out := &Calls{clock: c, events: recorder, scheduler: scheduler, patience: patience, waiting: map[types.UID]*waitingPod{}, heard: make(chan struct{})}
	_, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { onPod(obj, out.follow) },
		UpdateFunc: func(old, obj any) {
			was, ok := old.(*corev1.Pod)
			onPod(obj, func(pod *corev1.Pod) {
				if ok && was.UID != pod.UID {
					out.drop(was)
				}
				out.follow(pod)
			})
		},
		DeleteFunc: func(obj any) { onPod(obj, out.drop) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	return out, nil
}

func (c *Calls) follow(pod *corev1.Pod) {
	if pod.Spec.SchedulerName != c.scheduler || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || ended(pod) ||
		len(pod.Spec.SchedulingGates) > 0 || !binder.Judged(pod) {
		c.drop(pod)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.called {
		return
	}
	if w := c.waiting[pod.UID]; w != nil {
		w.pod = pod
		return
	}
	c.waiting[pod.UID] = &waitingPod{pod: pod, since: c.clock.Now()}
}

func (c *Calls) drop(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, pod.UID)
}

// Called notes a call.
func (c *Calls) Called() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.called {
		return
	}
	c.called = true
	clear(c.waiting)
	close(c.heard)
}

// Active says whether this replica is the one to be called: the one beside
// kube-scheduler's leader.
func (c *Calls) Active(now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !now:
		c.active = time.Time{}
	case c.active.IsZero():
		c.active = c.clock.Now()
	}
}

// Run tells the pods that wait, until the first call or the end of ctx.
func (c *Calls) Run(ctx context.Context) {
	tick := c.clock.NewTicker(c.patience / looks)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.heard:
			klog.FromContext(ctx).Info("kube-scheduler calls", "schedulerName", c.scheduler)
			return
		case <-tick.C():
			c.tell(ctx)
		}
	}
}

// tell sends each pod that has waited too long one event.
func (c *Calls) tell(ctx context.Context) {
	c.mu.Lock()
	var pods []*corev1.Pod
	overdue := c.overdue()
	for _, w := range overdue {
		if !w.told && len(pods) < toldAtOnce {
			w.told = true
			pods = append(pods, w.pod)
		}
	}
	why := c.why(len(overdue))
	c.mu.Unlock()
	if len(pods) == 0 {
		return
	}
	klog.FromContext(ctx).Info("kube-scheduler does not call", "pods", len(overdue), "reason", why)
	for _, pod := range pods {
		c.events.Eventf(pod, nil, corev1.EventTypeWarning, "ExtenderNotCalled", "Scheduling", "%s", why)
	}
}

// overdue are the pods that have waited for longer than patience, the longest first.
// It needs mu.
func (c *Calls) overdue() []*waitingPod {
	if c.called || c.active.IsZero() {
		return nil
	}
	now := c.clock.Now()
	if now.Sub(c.active) < c.patience {
		return nil
	}
	var out []*waitingPod
	for _, w := range c.waiting {
		if now.Sub(w.since) >= c.patience {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b *waitingPod) int { return a.since.Compare(b.since) })
	return out
}

func (c *Calls) why(pods int) string {
	return fmt.Sprintf("no kube-scheduler has asked berth-extender yet, and pods with volumes (%d) wait for scheduler %s: "+
		"none of that name runs, or its configuration lacks this extender (extenders[].urlPrefix), or it is turned away (berth_extender_requests_total), or no node passes its own filters (see FailedScheduling)",
		pods, c.scheduler)
}

// Check is for /readyz.
func (c *Calls) Check(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.overdue()); n > 0 {
		return fmt.Errorf("%s", c.why(n))
	}
	return nil
}

// Uncalled is how many pods have waited for too long.
func (c *Calls) Uncalled() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return float64(len(c.overdue()))
}
