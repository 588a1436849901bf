package desired

import (
	"context"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Source keeps the snapshot of one node up to date.
type Source struct {
	node   string
	client kubernetes.Interface
	// changed is told of every new snapshot, and what it replaces.
	changed func(before, now *Snapshot)

	latest atomic.Pointer[Snapshot]
	dirty  chan struct{}
}

// NewSource makes a source for a node; Run fills it. changed is called by one
// goroutine, one snapshot after another.
func NewSource(node string, client kubernetes.Interface, changed func(before, now *Snapshot)) *Source {
	s := &Source{node: node, client: client, changed: changed, dirty: make(chan struct{}, 1)}
	s.latest.Store(&Snapshot{})
	return s
}

// Snapshot is the latest one.
func (s *Source) Snapshot() *Snapshot { return s.latest.Load() }

// world is what Run watches. Only Run's goroutine uses it.
type world struct {
	node    string
	pods    *watching
	drivers *watching
	self    *watching
	claims  *byName
	volumes *byName
}

// Run watches until ctx ends.
func (s *Source) Run(ctx context.Context) {
	core := s.client.CoreV1()
	w := &world{
		node: s.node,
		pods: follow(ctx, s.client, core.Pods(corev1.NamespaceAll), &corev1.Pod{},
			fields.OneTermEqualSelector("spec.nodeName", s.node), s.mark),
		drivers: follow(ctx, s.client, s.client.StorageV1().CSIDrivers(), &storagev1.CSIDriver{}, fields.Everything(), s.mark),
		self:    follow(ctx, s.client, core.Nodes(), &corev1.Node{}, fields.OneTermEqualSelector("metadata.name", s.node), s.mark),
		claims: newByName(func(k types.NamespacedName) *watching {
			return follow(ctx, s.client, core.PersistentVolumeClaims(k.Namespace), &corev1.PersistentVolumeClaim{},
				fields.OneTermEqualSelector("metadata.name", k.Name), s.mark)
		}),
		volumes: newByName(func(k types.NamespacedName) *watching {
			return follow(ctx, s.client, core.PersistentVolumes(), &corev1.PersistentVolume{},
				fields.OneTermEqualSelector("metadata.name", k.Name), s.mark)
		}),
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dirty:
		}
		// A burst of changes is one snapshot: dirty holds one mark.
		if !w.pods.synced() || !w.drivers.synced() || !w.self.synced() {
			continue
		}
		now := build(w.podList(), w)
		w.claims.sweep()
		w.volumes.sweep()
		before := s.latest.Swap(now)
		s.changed(before, now)
	}
}

func (s *Source) mark() {
	select {
	case s.dirty <- struct{}{}:
	default: // the mark that is there will see this change too
	}
}

func (w *world) podList() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, obj := range w.pods.store.List() {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName == w.node {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Claim implements lookups.
func (w *world) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, bool) {
	obj, read := w.claims.get(namespace, name)
	claim, _ := obj.(*corev1.PersistentVolumeClaim)
	return claim, read
}

// PersistentVolume implements lookups.
func (w *world) PersistentVolume(name string) (*corev1.PersistentVolume, bool) {
	obj, read := w.volumes.get("", name)
	pv, _ := obj.(*corev1.PersistentVolume)
	return pv, read
}

// CSIDriver implements lookups.
func (w *world) CSIDriver(name string) *storagev1.CSIDriver {
	obj, _, _ := w.drivers.store.GetByKey(name)
	driver, _ := obj.(*storagev1.CSIDriver)
	return driver
}

// Node implements lookups.
func (w *world) Node() *corev1.Node {
	obj, _, _ := w.self.store.GetByKey(w.node)
	node, _ := obj.(*corev1.Node)
	return node
}
