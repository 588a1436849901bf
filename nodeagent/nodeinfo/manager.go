package nodeinfo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Grace is how long a driver's entry outlives its registration: long enough for
// a DaemonSet to replace the driver's pod.
const Grace = 2 * time.Minute

// infoTimeout bounds NodeGetInfo (kubelet, csi_plugin.go, csiTimeout).
const infoTimeout = 2 * time.Minute

// The queue's keys that are no driver's name: making sure of the CSINode at the
// start, and bringing both objects back in step with the drivers.
const (
	initKey   = ""
	repairKey = "/"
)

// Config is what a Manager needs.
type Config struct {
	NodeName string
	Client   kubernetes.Interface
	Recorder record.EventRecorder
	Clock    clock.WithTicker
}

// Manager keeps the Node and CSINode in step with the drivers that registered.
type Manager struct {
	cfg   Config
	queue workqueue.TypedRateLimitingInterface[string]
	// ownNode and ownCSINode are the node's two objects, as last seen.
	ownNode, ownCSINode single

	// writing is held while the Node or CSINode is written: concurrent
	// registrations would only conflict with each other.
	writing sync.Mutex

	mu sync.Mutex
	// present are the drivers that are registered. Guarded by mu.
	present map[string]bool
	// away is since when a driver is not registered. Guarded by mu.
	away map[string]time.Time
	// said is what the drivers said of the node: those that are registered,
	// and those of this run that are within their grace. Guarded by mu.
	said map[string]Info
	// contradictions are of drivers in said. Guarded by mu.
	contradictions map[string]contradiction
}

// New makes a Manager; Run makes it work.
func New(cfg Config) *Manager {
	m := &Manager{
		cfg: cfg,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](500*time.Millisecond, 2*time.Minute),
			workqueue.TypedRateLimitingQueueConfig[string]{Clock: cfg.Clock}),
		present: make(map[string]bool),
		away:    make(map[string]time.Time),
		said:    make(map[string]Info),

		contradictions: make(map[string]contradiction),
	}
	m.ownNode = watchOne(cfg.Client, cfg.Client.CoreV1().Nodes(), &corev1.Node{}, cfg.NodeName, m.look)
	m.ownCSINode = watchOne(cfg.Client, cfg.Client.StorageV1().CSINodes(), &storagev1.CSINode{}, cfg.NodeName, m.look)
	return m
}

// Run makes sure of the CSINode, keeps both objects in step with the drivers,
// whoever changes or replaces them, and takes out the entries of drivers that do
// not come back within Grace, those of an earlier run included. It ends with
// ctx, and may be called once.
func (m *Manager) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, m.queue.ShutDown)
	defer stop()
	var following sync.WaitGroup
	following.Go(func() { m.follow(ctx) })
	defer following.Wait()
	m.queue.Add(initKey)
	for {
		key, shutdown := m.queue.Get()
		if shutdown {
			return
		}
		if err := m.process(ctx, key); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "keeping the CSINode failed", "driver", key)
			m.queue.AddRateLimited(key)
		} else {
			m.queue.Forget(key)
		}
		m.queue.Done(key)
	}
}

func (m *Manager) process(ctx context.Context, key string) error {
	switch key {
	case initKey:
		return m.start(ctx)
	case repairKey:
		return m.repair(ctx)
	}
	m.mu.Lock()
	since, gone := m.away[key]
	m.mu.Unlock()
	if !gone {
		return nil
	}
	if rest := Grace - m.cfg.Clock.Since(since); rest > 0 {
		m.queue.AddAfter(key, rest)
		return nil
	}
	return m.uninstall(ctx, key)
}

// start makes sure of the CSINode, and starts the grace of each driver in it
// that has not registered.
func (m *Manager) start(ctx context.Context) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	var found *storagev1.CSINode
	err := m.retry(func() error {
		node, err := m.node(ctx)
		if err != nil {
			return err
		}
		found, err = m.write(ctx, node, func(c *storagev1.CSINode) (*storagev1.CSINode, bool) { return c, false })
		return err
	})
	if err != nil {
		return fmt.Errorf("initialising the CSINode: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range found.Spec.Drivers {
		if _, known := m.away[d.Name]; !known && !m.present[d.Name] {
			m.away[d.Name] = m.cfg.Clock.Now()
			m.queue.AddAfter(d.Name, Grace)
		}
	}
	return nil
}

// Register asks the driver about the node and writes the answer: the Node
// first, then the CSINode, because who sees the entry relies on the labels.
func (m *Manager) Register(ctx context.Context, driver string, node csi.NodeClient) error {
	infoCtx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	rsp, err := node.NodeGetInfo(infoCtx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("driver %s: NodeGetInfo: %w", driver, err)
	}
	info, err := infoOf(driver, rsp)
	if err != nil {
		return err
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	err = m.retry(func() error { return m.install(ctx, info) })
	if conflict, ok := errors.AsType[*LabelConflictError](err); ok {
		m.tellConflict(conflict)
	}
	if err != nil {
		return fmt.Errorf("registering driver %s on node %s: %w", driver, m.cfg.NodeName, err)
	}
	m.mu.Lock()
	delete(m.away, driver)
	m.present[driver] = true
	m.said[driver] = info
	delete(m.contradictions, driver)
	m.mu.Unlock()
	// What happened between the writes above and now was judged without info.
	m.look()
	return nil
}

// Deregister starts the driver's grace.
func (m *Manager) Deregister(driver string) {
	m.mu.Lock()
	delete(m.present, driver)
	m.away[driver] = m.cfg.Clock.Now()
	m.mu.Unlock()
	m.queue.AddAfter(driver, Grace)
}

func (m *Manager) install(ctx context.Context, info Info) error {
	node, err := m.node(ctx)
	if err != nil {
		return err
	}
	change, err := install(node, info)
	if err != nil {
		return err
	}
	if err := m.patch(ctx, node, change); err != nil {
		return err
	}
	_, err = m.write(ctx, node, func(c *storagev1.CSINode) (*storagev1.CSINode, bool) { return withDriver(c, info) })
	return err
}

// uninstall takes the driver out, unless it came back in the meantime.
func (m *Manager) uninstall(ctx context.Context, driver string) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	_, gone := m.away[driver]
	m.mu.Unlock()
	if !gone {
		return nil
	}
	err := m.retry(func() error {
		node, err := m.node(ctx)
		if apierrors.IsNotFound(err) {
			return nil // the CSINode goes with its owner
		}
		if err != nil {
			return err
		}
		if _, err := m.write(ctx, node, func(c *storagev1.CSINode) (*storagev1.CSINode, bool) {
			return withoutDriver(c, driver), false
		}); err != nil {
			return err
		}
		change, err := uninstall(node, driver)
		if err != nil {
			return err
		}
		return m.patch(ctx, node, change)
	})
	if err != nil {
		return fmt.Errorf("taking driver %s off node %s: %w", driver, m.cfg.NodeName, err)
	}
	klog.FromContext(ctx).Info("driver did not come back, its CSINode entry is removed", "driver", driver, "node", m.cfg.NodeName)
	m.mu.Lock()
	delete(m.away, driver)
	delete(m.said, driver)
	delete(m.contradictions, driver)
	m.mu.Unlock()
	return nil
}

func (m *Manager) node(ctx context.Context) (*corev1.Node, error) {
	return m.cfg.Client.CoreV1().Nodes().Get(ctx, m.cfg.NodeName, metav1.GetOptions{})
}

func (m *Manager) patch(ctx context.Context, node *corev1.Node, change nodeChange) error {
	if change.empty() {
		return nil
	}
	patch, err := change.patch(node)
	if err != nil {
		return err
	}
	_, err = m.cfg.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// write makes the CSINode, or changes it until change asks for nothing more.
func (m *Manager) write(ctx context.Context, node *corev1.Node, change func(*storagev1.CSINode) (*storagev1.CSINode, bool)) (*storagev1.CSINode, error) {
	csiNodes := m.cfg.Client.StorageV1().CSINodes()
	current, err := csiNodes.Get(ctx, node.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		next, _ := change(newCSINode(node))
		return csiNodes.Create(ctx, next, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, err
	}
	for {
		next, err := adopt(current, node)
		if errors.Is(err, errOtherOwner) {
			return nil, m.dropOrphan(ctx, current, err)
		}
		next, again := change(next)
		if !equality.Semantic.DeepEqual(current, next) {
			if next, err = csiNodes.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
				return nil, err
			}
		}
		if !again {
			return next, nil
		}
		current = next
	}
}

// dropOrphan deletes the CSINode of an earlier Node of this name, and returns
// an error that is worth another attempt.
func (m *Manager) dropOrphan(ctx context.Context, orphan *storagev1.CSINode, cause error) error {
	err := m.cfg.Client.StorageV1().CSINodes().Delete(ctx, orphan.Name, metav1.DeleteOptions{
		Preconditions: metav1.NewUIDPreconditions(string(orphan.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the CSINode of an earlier node: %w", err)
	}
	return cause
}

// retry repeats a read-modify-write that met another writer.
func (m *Manager) retry(attempt func() error) error {
	return retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, errOtherOwner)
	}, attempt)
}
