package oracle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// told is an informer that tells its handlers of an event before whoever caused it
// goes on. The extender knows pods from events, as nobody gives it a snapshot.
type told struct {
	cache.SharedIndexInformer
	handlers []cache.ResourceEventHandler
}

// AddEventHandler implements cache.SharedInformer.
func (i *told) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, h)
	return listed{}, nil
}

// HasSyncedChecker implements cache.SharedInformer.
func (i *told) HasSyncedChecker() cache.DoneChecker { return listed{} }

// listed is an informer's first list, which is over: it had nothing in it.
type listed struct{}

// Name implements cache.DoneChecker.
func (listed) Name() string { return "listed" }

// Done implements cache.DoneChecker.
func (listed) Done() <-chan struct{} {
	over := make(chan struct{})
	close(over)
	return over
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (listed) HasSynced() bool { return true }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (listed) HasSyncedChecker() cache.DoneChecker { return listed{} }

// tellAll makes every informer of the server's factory one that tells. None may have
// been asked for before.
func (s *server) tellAll() {
	s.told = map[string]*told{}
	quiet := informers.NewSharedInformerFactory(nil, 0)
	for _, kind := range []runtime.Object{
		&corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}, &corev1.Node{}, &corev1.Pod{}, &storagev1.StorageClass{},
		&storagev1.CSIStorageCapacity{}, &storagev1.CSIDriver{}, &storagev1.VolumeAttachment{}, &storagev1.CSINode{},
	} {
		i := &told{SharedIndexInformer: informerOf(quiet, kind)}
		s.told[resourceOf(kind)] = i
		s.factory.InformerFor(kind, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return i })
	}
}

// tell tells the handlers of an object's informer, if it is one that does. before is
// nil for a new object, after for one that is gone.
func (s *server) tell(kind runtime.Object, before, after any) {
	i := s.told[resourceOf(kind)]
	if i == nil {
		return
	}
	for _, h := range i.handlers {
		switch {
		case before == nil:
			h.OnAdd(after, false)
		case after == nil:
			h.OnDelete(before)
		default:
			h.OnUpdate(before, after)
		}
	}
}
