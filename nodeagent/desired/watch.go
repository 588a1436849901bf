package desired

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// lister is the typed client's part that an informer needs.
type lister[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// watching is a running informer.
type watching struct {
	store  cache.Store
	synced func() bool
	stop   context.CancelFunc
}

// follow keeps a store of what the selector selects until stop or the end of
// ctx. changed is called after each change of the store, and once it is complete.
func follow[L runtime.Object](ctx context.Context, client kubernetes.Interface, from lister[L], kind runtime.Object, selector fields.Selector, changed func()) *watching {
	ctx, stop := context.WithCancel(ctx)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector.String()
			return from.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector.String()
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
		Transform: stripManagedFields,
	})
	go controller.RunWithContext(ctx)
	go func() {
		// An empty answer calls no handler, but is news too.
		select {
		case <-controller.HasSyncedChecker().Done():
			changed()
		case <-ctx.Done():
		}
	}()
	return &watching{store: store, synced: controller.HasSynced, stop: stop}
}

// stripManagedFields drops what nobody here reads and everybody would hold. It
// works on a copy: client-go's fake gives one object to several watchers.
func stripManagedFields(obj any) (any, error) {
	o, ok := obj.(runtime.Object)
	if !ok {
		return obj, nil
	}
	if m, ok := obj.(metav1.Object); !ok || len(m.GetManagedFields()) == 0 {
		return obj, nil
	}
	own := o.DeepCopyObject()
	if m, ok := own.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return own, nil
}

// byName watches single objects, those asked for and no others.
type byName struct {
	open func(types.NamespacedName) *watching
	// watched are open; used are those asked for since the last sweep.
	watched map[types.NamespacedName]*watching
	used    map[types.NamespacedName]bool
}

func newByName(open func(types.NamespacedName) *watching) *byName {
	return &byName{open: open, watched: make(map[types.NamespacedName]*watching), used: make(map[types.NamespacedName]bool)}
}

// get returns the object, nil if it does not exist, and whether it was read.
func (b *byName) get(namespace, name string) (any, bool) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	b.used[key] = true
	w, ok := b.watched[key]
	if !ok {
		w = b.open(key)
		b.watched[key] = w
	}
	if !w.synced() {
		return nil, false
	}
	storeKey := name
	if namespace != "" {
		storeKey = namespace + "/" + name
	}
	obj, exists, err := w.store.GetByKey(storeKey)
	if err != nil || !exists {
		return nil, true
	}
	return obj, true
}

// sweep ends the watches that nobody asked for since the last sweep.
func (b *byName) sweep() {
	for key, w := range b.watched {
		if !b.used[key] {
			w.stop()
			delete(b.watched, key)
		}
	}
	clear(b.used)
}
