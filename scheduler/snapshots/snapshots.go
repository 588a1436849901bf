// Package snapshots knows which node holds the data of a VolumeSnapshot.
package snapshots

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/volume"
)

// snapshotContents is what external-snapshotter's VolumeSnapshotContents are
// served as.
var snapshotContents = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"}

// firstSight is how long the first claim that is made from a snapshot waits for
// the snapshots to be read. It would otherwise be judged without its source, and
// could go to a node that has not got it. Where there is nothing to read, one
// claim in a scheduler's life waits in vain.
const firstSight = 2 * time.Second

// bySnapshot indexes contents by their VolumeSnapshot.
const bySnapshot = "snapshot"

// Snapshots knows which node holds the data of a VolumeSnapshot. It watches
// nothing until the first claim is made from one: most clusters have no
// snapshots, and some not even their API. Until then, and where the scheduler may
// not read them, it knows of none; the driver then refuses a node in its place.
type Snapshots struct {
	ctx    context.Context //nolint:containedctx // the plugin's own life, which the watch shares
	client func() (dynamic.Interface, error)
	// changed is called when what NodeOf answers may be another.
	changed func()

	start sync.Once
	mu    sync.Mutex
	// informer is guarded by mu; nil before the first question.
	informer toolscache.SharedIndexInformer
}

// New makes it, without a word to the API server. changed is called when what
// NodeOf answers may be another.
func New(ctx context.Context, config *rest.Config, changed func()) *Snapshots {
	return &Snapshots{ctx: ctx, changed: changed, client: func() (dynamic.Interface, error) {
		if config == nil {
			return nil, errors.New("the scheduler has no client configuration")
		}
		return dynamic.NewForConfig(config)
	}}
}

// NodeOf implements cache.Snapshots.
func (s *Snapshots) NodeOf(namespace, name string) (string, bool) {
	s.start.Do(s.watch)
	s.mu.Lock()
	informer := s.informer
	s.mu.Unlock()
	if informer == nil {
		return "", false
	}
	found, err := informer.GetIndexer().ByIndex(bySnapshot, namespace+"/"+name)
	if err != nil {
		return "", false
	}
	for _, o := range found {
		content, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		if node := content.GetLabels()[volume.LabelSnapshotManagedBy]; node != "" {
			return node, true
		}
	}
	return "", false
}

// watch starts the informer.
func (s *Snapshots) watch() {
	logger := klog.FromContext(s.ctx)
	client, err := s.client()
	if err != nil {
		logger.Error(err, "cannot watch snapshots; claims made from them go to any node")
		return
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, snapshotContents, "", 0, toolscache.Indexers{bySnapshot: snapshotOf}, nil).Informer()
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.changed() },
		UpdateFunc: func(oldObj, newObj any) {
			if !sameNode(oldObj, newObj) {
				s.changed()
			}
		},
	}
	if err := informer.SetTransform(onlyWhatIsRead); err != nil {
		logger.Error(err, "cannot watch snapshots; claims made from them go to any node")
		return
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		logger.Error(err, "cannot watch snapshots; claims made from them go to any node")
		return
	}
	s.mu.Lock()
	s.informer = informer
	s.mu.Unlock()
	go informer.RunWithContext(s.ctx)
	ctx, cancel := context.WithTimeout(s.ctx, firstSight)
	defer cancel()
	toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
}

// snapshotOf is the index function of bySnapshot.
func snapshotOf(obj any) ([]string, error) {
	content, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, nil
	}
	namespace, _, errNamespace := unstructured.NestedString(content.Object, "spec", "volumeSnapshotRef", "namespace")
	name, _, errName := unstructured.NestedString(content.Object, "spec", "volumeSnapshotRef", "name")
	if errNamespace != nil || errName != nil || name == "" {
		return nil, nil //nolint:nilerr // a content that names no snapshot is found by none
	}
	return []string{namespace + "/" + name}, nil
}

func sameNode(oldObj, newObj any) bool {
	a, okA := oldObj.(*unstructured.Unstructured)
	b, okB := newObj.(*unstructured.Unstructured)
	return okA && okB && a.GetLabels()[volume.LabelSnapshotManagedBy] == b.GetLabels()[volume.LabelSnapshotManagedBy]
}

// onlyWhatIsRead keeps of a content its names, its node and its snapshot.
func onlyWhatIsRead(obj any) (any, error) {
	content, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	ref, _, err := unstructured.NestedMap(content.Object, "spec", "volumeSnapshotRef")
	if err != nil {
		ref = nil
	}
	small := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"volumeSnapshotRef": ref}}}
	small.SetGroupVersionKind(content.GroupVersionKind())
	small.SetName(content.GetName())
	small.SetUID(content.GetUID())
	small.SetResourceVersion(content.GetResourceVersion())
	if node := content.GetLabels()[volume.LabelSnapshotManagedBy]; node != "" {
		small.SetLabels(map[string]string{volume.LabelSnapshotManagedBy: node})
	}
	return small, nil
}
