package extender

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/berth-storage/berth/scheduler/cache"
)

// tenancy knows which pods are on which node, those among them that are promised to
// it. A plugin has that from its scheduler's snapshot. It implements binder.Nodes.
type tenancy struct {
	csiNodes storagelisters.CSINodeLister

	mu sync.Mutex
	// Guarded by mu. at: node → its pods. where: pod → its node as the API has it,
	// and assumed: pod → the node that it is promised to.
	at      map[string]*tenants
	where   map[types.UID]string
	assumed map[types.UID]string
	// generation is the last one that was given.
	generation int64
}

// tenants are never changed: a change makes other ones.
type tenants struct {
	generation int64
	pods       map[types.UID]*corev1.Pod
}

func newTenancy(csiNodes storagelisters.CSINodeLister) *tenancy {
	return &tenancy{csiNodes: csiNodes, at: map[string]*tenants{}, where: map[types.UID]string{}, assumed: map[types.UID]string{}}
}

// CSINode implements binder.Nodes.
func (t *tenancy) CSINode(node string) (*storagev1.CSINode, error) {
	csiNode, err := t.csiNodes.Get(node)
	switch {
	case err == nil:
		return csiNode, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	}
	return nil, fmt.Errorf("reading CSINode %s: %w", node, err)
}

// Informed implements binder.Nodes.
func (t *tenancy) Informed() bool { return true }

// Tenants implements binder.Nodes.
func (t *tenancy) Tenants(node string) (cache.Tenants, bool) { return t.of(node), true }

// of are a node's pods.
func (t *tenancy) of(node string) cache.Tenants {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.at[node]
	if now == nil {
		return cache.Tenants{Node: node, Pods: slices.Values([]*corev1.Pod(nil))}
	}
	return cache.Tenants{Node: node, Generation: now.generation, Pods: maps.Values(now.pods)}
}

// without are a node's pods but for some: what it would have after evictions.
func (t *tenancy) without(node string, gone map[types.UID]bool) cache.Tenants {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.generation++
	out := cache.Tenants{Node: node, Generation: t.generation}
	var left []*corev1.Pod
	if now := t.at[node]; now != nil {
		for uid, pod := range now.pods {
			if !gone[uid] {
				left = append(left, pod)
			}
		}
	}
	out.Pods = slices.Values(left)
	return out
}

// assume counts a pod on the node that it is promised to, until the API says where
// it is, or forget.
func (t *tenancy) assume(pod *corev1.Pod, node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.where[pod.UID] != "" {
		return
	}
	if before := t.assumed[pod.UID]; before != "" && before != node {
		t.put(before, pod.UID, nil)
	}
	t.assumed[pod.UID] = node
	t.put(node, pod.UID, pod)
}

// forget ends what assume began.
func (t *tenancy) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if node, ok := t.assumed[uid]; ok {
		delete(t.assumed, uid)
		if t.where[uid] != node {
			t.put(node, uid, nil)
		}
	}
}

// set takes a pod as the API has it; gone where it has ended.
func (t *tenancy) set(pod *corev1.Pod, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := pod.Spec.NodeName
	if gone || ended(pod) {
		node = ""
	}
	before, assumed := t.where[pod.UID], t.assumed[pod.UID]
	if node == "" && before == "" && (assumed == "" || !gone && !ended(pod)) {
		return
	}
	for _, n := range []string{before, assumed} {
		if n != "" && n != node {
			t.put(n, pod.UID, nil)
		}
	}
	delete(t.assumed, pod.UID)
	if node == "" {
		delete(t.where, pod.UID)
		return
	}
	t.where[pod.UID] = node
	t.put(node, pod.UID, pod)
}

// put gives a node a pod, or takes it away where pod is nil. It needs mu.
func (t *tenancy) put(node string, uid types.UID, pod *corev1.Pod) {
	now := t.at[node]
	switch {
	case now == nil && pod == nil:
		return
	case now == nil:
		now = &tenants{}
	case now.pods[uid] == pod:
		return
	}
	t.generation++
	next := &tenants{generation: t.generation, pods: maps.Clone(now.pods)}
	if next.pods == nil {
		next.pods = map[types.UID]*corev1.Pod{}
	}
	if pod == nil {
		delete(next.pods, uid)
	} else {
		next.pods[uid] = pod
	}
	t.at[node] = next
	if len(next.pods) == 0 {
		delete(t.at, node)
	}
}

// ended reports whether the pod uses nothing any more (upstream: the scheduler's
// informer leaves such pods out).
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// handler follows the pods. Their objects change with every status, their volumes
// never do, so that a pod that stays where it is changes nothing here.
func (t *tenancy) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { onPod(obj, func(p *corev1.Pod) { t.set(p, false) }) },
		UpdateFunc: func(old, obj any) {
			was, ok := old.(*corev1.Pod)
			onPod(obj, func(p *corev1.Pod) {
				switch {
				case ok && was.UID != p.UID:
					t.set(was, true)
				case ok && was.Spec.NodeName == p.Spec.NodeName && ended(was) == ended(p):
					return
				}
				t.set(p, false)
			})
		},
		DeleteFunc: func(obj any) { onPod(obj, func(p *corev1.Pod) { t.set(p, true) }) },
	}
}

// onPod calls f with the pod of an event.
func onPod(obj any, f func(*corev1.Pod)) {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		f(pod)
	}
}
