package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-storage/berth/volume"
)

// Watch sees the pods, claims and volumes of a rig as they change.
type Watch struct {
	factory informers.SharedInformerFactory
	pods    cache.SharedIndexInformer
	claims  cache.SharedIndexInformer
	volumes cache.SharedIndexInformer

	mu      sync.Mutex
	placed  map[string]time.Time     // guarded by mu; pods by name, and when their node was seen first
	changed chan struct{}            // guarded by mu; closed and made anew when placed changes
	bound   map[string]chan struct{} // guarded by mu; claims by name; closed when the claim is bound
}

// NewWatch makes a watch; Start begins it.
func (r *Rig) NewWatch() (*Watch, error) {
	f := informers.NewSharedInformerFactoryWithOptions(r.client, 0, informers.WithTransform(withoutManagers))
	w := &Watch{
		factory: f,
		pods:    f.Core().V1().Pods().Informer(), claims: f.Core().V1().PersistentVolumeClaims().Informer(), volumes: f.Core().V1().PersistentVolumes().Informer(),
		placed: map[string]time.Time{}, changed: make(chan struct{}), bound: map[string]chan struct{}{},
	}
	return w, errors.Join(onChange(w.pods, w.podChanged), onChange(w.claims, w.claimChanged))
}

// withoutManagers leaves out what nobody here reads and takes much room.
func withoutManagers(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		o.ManagedFields = nil
	case *corev1.PersistentVolume:
		o.ManagedFields = nil
	case *corev1.PersistentVolumeClaim:
		o.ManagedFields = nil
	}
	return object, nil
}

// onChange calls do with each object that is added or changed.
func onChange[T any](informer cache.SharedIndexInformer, do func(T)) error {
	handle := func(object any) {
		if o, ok := object.(T); ok {
			do(o)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: handle, UpdateFunc: func(_, now any) { handle(now) },
	})
	if err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	return nil
}

// Start begins to watch, until ctx ends, and returns when everything was read.
func (w *Watch) Start(ctx context.Context) error {
	w.factory.StartWithContext(ctx)
	result := w.factory.WaitForCacheSyncWithContext(ctx)
	return result.AsError()
}

// Wait returns when the watch has ended.
func (w *Watch) Wait() { w.factory.Shutdown() }

func (w *Watch) podChanged(p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.placed[p.Name]; known {
		return
	}
	w.placed[p.Name] = now
	close(w.changed)
	w.changed = make(chan struct{})
}

// Placed is when each of the pods was first seen with a node, for those that
// were, and a channel that is closed when there is another.
func (w *Watch) Placed(pods []string) (times []time.Time, more <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range pods {
		if at, ok := w.placed[name]; ok {
			times = append(times, at)
		}
	}
	return times, w.changed
}

func (w *Watch) claimChanged(c *corev1.PersistentVolumeClaim) {
	if c.Annotations[volume.AnnBindCompleted] == "" || c.Spec.VolumeName == "" {
		return
	}
	ch := w.claimBound(c.Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// claimBound is closed when the claim is bound.
func (w *Watch) claimBound(name string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	ch, ok := w.bound[name]
	if !ok {
		ch = make(chan struct{})
		w.bound[name] = ch
	}
	return ch
}

func (w *Watch) claim(name string) (*corev1.PersistentVolumeClaim, error) {
	c, err := corelisters.NewPersistentVolumeClaimLister(w.claims.GetIndexer()).PersistentVolumeClaims(Namespace).Get(name)
	if err != nil {
		return nil, fmt.Errorf("reading claim %s: %w", name, err)
	}
	return c, nil
}

func (w *Watch) volume(name string) (*corev1.PersistentVolume, error) {
	pv, err := corelisters.NewPersistentVolumeLister(w.volumes.GetIndexer()).Get(name)
	if err != nil {
		return nil, fmt.Errorf("reading volume %s: %w", name, err)
	}
	return pv, nil
}

// Why tells what is said of those of the pods that have no node: each message
// once, with how many say so.
func (w *Watch) Why(pods []string) string {
	said := map[string]int{}
	for _, name := range pods {
		object, _, err := w.pods.GetIndexer().GetByKey(Namespace + "/" + name)
		p, ok := object.(*corev1.Pod)
		if err != nil || !ok || p.Spec.NodeName != "" {
			continue
		}
		message := "nothing is said of it"
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				message = c.Reason + ": " + c.Message
			}
		}
		said[message]++
	}
	var lines strings.Builder
	for _, message := range slices.Sorted(maps.Keys(said)) {
		fmt.Fprintf(&lines, "\n  %d pods: %s", said[message], message)
	}
	return lines.String()
}

// Check holds what a scheduler did against what it must do: each placed pod has
// a bound claim whose volume lies on the pod's node, and no two have the same.
func (w *Watch) Check(pods []string) error {
	owner := map[string]string{}
	for _, name := range pods {
		object, ok, err := w.pods.GetIndexer().GetByKey(Namespace + "/" + name)
		if err != nil || !ok {
			return fmt.Errorf("pod %s is gone (%w)", name, err)
		}
		p, ok := object.(*corev1.Pod)
		if !ok || p.Spec.NodeName == "" {
			continue
		}
		c, err := w.claim(name)
		if err != nil {
			return err
		}
		if c.Spec.VolumeName == "" {
			return fmt.Errorf("pod %s was placed on %s before its claim was bound", name, p.Spec.NodeName)
		}
		pv, err := w.volume(c.Spec.VolumeName)
		if err != nil {
			return err
		}
		if nodeOf(pv) != p.Spec.NodeName {
			return fmt.Errorf("pod %s was placed on %s, and its volume %s lies on %s", name, p.Spec.NodeName, pv.Name, nodeOf(pv))
		}
		if other, taken := owner[pv.Name]; taken {
			return fmt.Errorf("volume %s was given to %s and to %s", pv.Name, other, name)
		}
		owner[pv.Name] = name
	}
	return nil
}
