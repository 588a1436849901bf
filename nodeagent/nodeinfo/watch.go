package nodeinfo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// settleTime is how long a label may contradict a registered driver before it
// is told: a driver that follows the label registers anew in the meantime.
const settleTime = 10 * time.Second

// lister is the typed client's part that an informer needs.
type lister[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// single is a watch of one object.
type single struct {
	name       string
	store      cache.Store
	controller cache.Controller
}

// watchOne makes a watch of the cluster-scoped object named name, which tells
// changed of everything that happens to it.
func watchOne[L runtime.Object](client kubernetes.Interface, from lister[L], kind runtime.Object, name string, changed func()) single {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return from.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return from.Watch(ctx, o)
		},
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, client),
		ObjectType:    kind,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(_, _ any) { changed() },
			DeleteFunc: func(any) { changed() },
		},
	})
	return single{name: name, store: store, controller: controller}
}

// get is the object as it was last seen; nil if there is none.
func (s single) get() any {
	obj, _, _ := s.store.GetByKey(s.name)
	return obj
}

// follow runs both watches until ctx ends.
func (m *Manager) follow(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.ownNode.controller.RunWithContext(ctx) })
	running.Go(func() { m.ownCSINode.controller.RunWithContext(ctx) })
	running.Wait()
}

// look queues a repair if the objects, as last seen, differ from what the
// drivers said. What is seen may be old: the repair decides by what it reads.
func (m *Manager) look() {
	node, _ := m.ownNode.get().(*corev1.Node)
	csiNode, _ := m.ownCSINode.get().(*storagev1.CSINode)
	if !inStep(node, csiNode, m.infos()) {
		m.queue.Add(repairKey)
	}
}

// infos are what the drivers said, ordered by their names.
func (m *Manager) infos() []Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	infos := make([]Info, 0, len(m.said))
	for _, driver := range slices.Sorted(maps.Keys(m.said)) {
		infos = append(infos, m.said[driver])
	}
	return infos
}

// inStep reports whether a repair would write nothing: it asks the functions
// that the repair writes by, so that the two cannot chase each other. Without a
// Node there is nothing to be in step with.
func inStep(node *corev1.Node, csiNode *storagev1.CSINode, infos []Info) bool {
	if node == nil {
		return true
	}
	if csiNode == nil {
		return false
	}
	next, err := adopt(csiNode, node)
	if err != nil {
		return false
	}
	for _, info := range infos {
		change, err := install(node, info)
		if err != nil || !change.empty() {
			return false
		}
		next, _ = withDriver(next, info)
	}
	return equality.Semantic.DeepEqual(csiNode, next)
}

// repair brings Node and CSINode back to what the drivers said.
func (m *Manager) repair(ctx context.Context) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if _, err := m.node(ctx); apierrors.IsNotFound(err) {
		return nil // its return is an event
	}
	err := m.retry(func() error {
		node, err := m.node(ctx)
		if err != nil {
			return err
		}
		_, err = m.write(ctx, node, func(c *storagev1.CSINode) (*storagev1.CSINode, bool) { return c, false })
		return err
	})
	errs := []error{err}
	for _, info := range m.infos() {
		err := m.retry(func() error { return m.install(ctx, info) })
		if conflict, ok := errors.AsType[*LabelConflictError](err); ok {
			m.contradicted(ctx, info.Driver, conflict)
			continue
		}
		m.agreed(info.Driver)
		if err != nil {
			errs = append(errs, fmt.Errorf("driver %s: %w", info.Driver, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bringing node %s back in step with its drivers: %w", m.cfg.NodeName, err)
	}
	return nil
}

// contradiction is a label that says another thing than a registered driver.
type contradiction struct {
	LabelConflictError
	since time.Time
	told  bool
}

// contradicted tells, once, of a label that somebody else set to another value
// than the driver reports, if that lasts. It is not tried again: the label's
// next change is an event.
func (m *Manager) contradicted(ctx context.Context, driver string, conflict *LabelConflictError) {
	now := m.cfg.Clock.Now()
	m.mu.Lock()
	c, known := m.contradictions[driver]
	if !known || c.LabelConflictError != *conflict {
		c = contradiction{LabelConflictError: *conflict, since: now}
	}
	rest := settleTime - now.Sub(c.since)
	tell := rest <= 0 && !c.told
	c.told = c.told || tell
	m.contradictions[driver] = c
	m.mu.Unlock()
	switch {
	case rest > 0:
		m.queue.AddAfter(repairKey, rest)
	case tell:
		klog.FromContext(ctx).Error(conflict, "a label contradicts a registered driver", "driver", driver, "node", m.cfg.NodeName)
		m.tellConflict(conflict)
	}
}

func (m *Manager) agreed(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.contradictions, driver)
}

func (m *Manager) tellConflict(conflict *LabelConflictError) {
	m.cfg.Recorder.Event(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: m.cfg.NodeName, UID: types.UID(m.cfg.NodeName)},
		corev1.EventTypeWarning, "TopologyLabelConflict", conflict.Error())
}
