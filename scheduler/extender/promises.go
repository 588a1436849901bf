package extender

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// keptFor is how long a promise outlives its last attempt where nothing in the API
// ties the pod to the node: kube-scheduler tries a pod again after ten seconds at
// most, unless it found another place for it.
const keptFor = 2 * time.Minute

// stage is how far a promise is. The set is closed.
type stage string

const (
	// stageAttempt: a bind is at work on it.
	stageAttempt stage = "attempt"
	// stageKept: its last bind ended before its volumes were there. The next one
	// goes on.
	stageKept stage = "kept"
	// stagePlaced: the pod is bound, and the informer has yet to show it.
	stagePlaced stage = "placed"
)

// promise is a pod's plan, which every decision of another pod counts as carried out.
type promise struct {
	pod   *corev1.Pod
	plan  binding.BindPlan
	stage stage
	// attempt is the last one whose writes were begun; nil before.
	attempt *binder.Attempt
	// over: while an attempt was at work the API said that the promise ends; there:
	// because the pod is on its node.
	over, there bool
	// expiry ends it when nothing else does; nil during an attempt.
	expiry clock.Timer
}

// promises are those of all pods, by UID. One ends when
//
//   - its pod is on a node, gone, or promised another one;
//   - a claim of it is gone or was given back by its provisioner, a volume taken, or
//     its node gone, as the attempt's own judgement has it;
//   - nothing was heard of it for keptFor, and no claim is being provisioned for it.
//
// None of them lives anywhere but in memory: what was written is in the API, and
// what was not is not worth more than a retry.
type promises struct {
	clock   clock.WithDelayedExecution
	cache   *cache.Cache
	tenancy *tenancy

	mu sync.Mutex
	// Guarded by mu. of: pod → its promise. byClaim: claim → pods with a promise
	// for it. turns: pod → whose turn it is, closed at its end.
	of      map[types.UID]*promise
	byClaim map[string]map[types.UID]struct{}
	turns   map[types.UID]chan struct{}
}

func newPromises(c clock.WithDelayedExecution, all *cache.Cache, t *tenancy) *promises {
	return &promises{
		clock: c, cache: all, tenancy: t,
		of: map[types.UID]*promise{}, byClaim: map[string]map[types.UID]struct{}{}, turns: map[types.UID]chan struct{}{},
	}
}

// enter waits for the pod's turn: one bind of a pod at a time. leave ends it.
func (p *promises) enter(ctx context.Context, uid types.UID) (leave func(), err error) {
	for {
		p.mu.Lock()
		turn, taken := p.turns[uid]
		if !taken {
			turn = make(chan struct{})
			p.turns[uid] = turn
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.turns, uid)
				close(turn)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
			return nil, fmt.Errorf("another bind of the pod is at work: %w", context.Cause(ctx))
		}
	}
}

// commit promises the pod the plan, in the place of what it was promised before.
// The pod's turn and Service.committing are the caller's.
func (p *promises) commit(pod *corev1.Pod, plan binding.BindPlan) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.of[pod.UID]
	p.end(pod.UID)
	if err := p.cache.Assume(plan, string(pod.UID)); err != nil {
		return err
	}
	p.tenancy.assume(pod, plan.Node)
	now := &promise{pod: pod, plan: plan, stage: stageAttempt}
	if before != nil {
		now.attempt = before.attempt
	}
	p.of[pod.UID] = now
	for _, claim := range claimsOf(plan) {
		if p.byClaim[claim] == nil {
			p.byClaim[claim] = map[types.UID]struct{}{}
		}
		p.byClaim[claim][pod.UID] = struct{}{}
	}
	return nil
}

func claimsOf(plan binding.BindPlan) []string {
	out := make([]string, 0, len(plan.Binds)+len(plan.Selects))
	for _, b := range plan.Binds {
		out = append(out, b.Claim)
	}
	for _, s := range plan.Selects {
		out = append(out, s.Claim)
	}
	return out
}

// node is where the pod is promised or placed, by what is known here; empty for
// nowhere. placed: the API has it, or will have.
func (p *promises) node(uid types.UID) (node string, placed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pr := p.of[uid]; pr != nil {
		return pr.plan.Node, pr.stage == stagePlaced
	}
	return "", false
}

// begin notes the attempt that carries the promise out. What an earlier one reserved
// is from then on this one's to give back.
func (p *promises) begin(uid types.UID, a *binder.Attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.of[uid]
	if pr == nil {
		return
	}
	if pr.attempt != nil {
		a.Continue(pr.attempt)
	}
	pr.attempt = a
}

// keep ends an attempt at a promise that stays.
func (p *promises) keep(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.of[uid]
	if pr == nil {
		return
	}
	pr.stage = stageKept
	switch {
	case pr.there:
		p.end(uid)
	case pr.over || p.hopeless(pr):
		p.drop(uid, pr)
	default:
		p.arm(uid, pr)
	}
}

// placed ends an attempt at a promise whose pod is bound. The informer ends it; where
// it has done so already nothing is left.
func (p *promises) placed(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.of[uid]
	switch {
	case pr == nil:
	case pr.over:
		p.end(uid)
	default:
		pr.stage = stagePlaced
		p.arm(uid, pr)
	}
}

// release ends a promise that came to nothing.
func (p *promises) release(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(uid)
}

// end needs mu. What was written stays with the cache until the informer has it.
func (p *promises) end(uid types.UID) {
	pr := p.of[uid]
	if pr == nil {
		return
	}
	delete(p.of, uid)
	for _, claim := range claimsOf(pr.plan) {
		delete(p.byClaim[claim], uid)
		if len(p.byClaim[claim]) == 0 {
			delete(p.byClaim, claim)
		}
	}
	if pr.expiry != nil {
		pr.expiry.Stop()
	}
	p.cache.Forget(pr.plan, string(uid))
	p.tenancy.forget(uid)
}

// drop ends a kept promise whose pod does not get its node, and gives back the volumes
// that it reserved and nobody took up: they would tie the pod to the node. It needs mu.
func (p *promises) drop(uid types.UID, pr *promise) {
	p.end(uid)
	if pr.stage == stageKept && pr.attempt != nil {
		// Not under mu: it writes.
		go p.giveBack(uid, pr.attempt)
	}
}

// giveBack undoes an attempt in the pod's turn. Where a bind came first, what was
// reserved is its own.
//
//nolint:contextcheck,nolintlint // no request waits for it; callers are told so here
func (p *promises) giveBack(uid types.UID, a *binder.Attempt) {
	leave, err := p.enter(context.Background(), uid)
	if err != nil {
		return
	}
	defer leave()
	if node, _ := p.node(uid); node == "" {
		a.Undo(context.Background())
	}
}

// hopeless asks a kept promise's attempt whether what it waits for can still come.
func (p *promises) hopeless(pr *promise) bool {
	if pr.stage != stageKept || pr.attempt == nil {
		return false
	}
	err := pr.attempt.Hopeless()
	if err != nil {
		klog.Background().V(2).Info("promise ends", "pod", klog.KObj(pr.pod), "node", klog.KRef("", pr.plan.Node), "reason", err.Error())
	}
	return err != nil
}

// arm lets a promise end by time. It needs mu.
func (p *promises) arm(uid types.UID, pr *promise) {
	if pr.expiry != nil {
		pr.expiry.Stop()
	}
	// A goroutine of its own: a clock may hold its lock while it calls.
	pr.expiry = p.clock.AfterFunc(keptFor, func() { go p.expire(uid, pr) })
}

// expire ends a promise of which nothing was heard for long enough, unless a claim is
// tied to the node.
func (p *promises) expire(uid types.UID, pr *promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.of[uid] != pr || pr.stage == stageAttempt:
	case pr.stage == stageKept && p.tied(pr):
		// The claim's own events end it.
		p.arm(uid, pr)
	default:
		klog.Background().V(2).Info("promise ends", "pod", klog.KObj(pr.pod), "node", klog.KRef("", pr.plan.Node), "reason", "no bind came for it any more")
		p.drop(uid, pr)
	}
}

// tied reports whether a claim of the promise is being provisioned for its node.
func (p *promises) tied(pr *promise) bool {
	return slices.ContainsFunc(pr.plan.Selects, func(s binding.Select) bool {
		pvc := p.cache.ClaimByKey(s.Claim)
		return pvc != nil && string(pvc.UID) == s.ClaimUID && pvc.Spec.VolumeName == "" && pvc.Annotations[volume.AnnSelectedNode] == pr.plan.Node
	})
}

// count is how many promises wait for volumes.
func (p *promises) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, pr := range p.of {
		if pr.stage != stagePlaced {
			n++
		}
	}
	return n
}

// podHandler ends the promises of pods that are on a node, or gone.
func (p *promises) podHandler() toolscache.ResourceEventHandler {
	settle := func(pod *corev1.Pod) {
		p.mu.Lock()
		defer p.mu.Unlock()
		pr := p.of[pod.UID]
		if pr == nil {
			return
		}
		pr.there = pod.Spec.NodeName == pr.plan.Node
		switch {
		case pr.stage == stageAttempt:
			pr.over = true
		case pr.there:
			p.end(pod.UID)
		default:
			p.drop(pod.UID, pr)
		}
	}
	settled := func(pod *corev1.Pod) {
		if pod.Spec.NodeName != "" || ended(pod) {
			settle(pod)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		// The first that the informer sees of a pod may be its node.
		AddFunc: func(obj any) { onPod(obj, settled) },
		UpdateFunc: func(old, obj any) {
			was, ok := old.(*corev1.Pod)
			onPod(obj, func(pod *corev1.Pod) {
				if ok && was.UID != pod.UID {
					settle(was)
				}
				settled(pod)
			})
		},
		DeleteFunc: func(obj any) { onPod(obj, settle) },
	}
}

// claimHandler ends kept promises whose claim is gone or was given back.
func (p *promises) claimHandler() toolscache.ResourceEventHandler {
	changed := func(obj any) {
		key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(obj)
		if err != nil {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for uid := range maps.Clone(p.byClaim[key]) {
			if pr := p.of[uid]; pr != nil && p.hopeless(pr) {
				p.drop(uid, pr)
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) { changed(obj) }, DeleteFunc: changed,
	}
}
