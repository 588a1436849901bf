package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// server is what the plugins rely on of an API server: objects have versions,
// and a write on another version is refused. What it has lies in the informers'
// stores at once, except for writes of the plugins, which it only records.
type server struct {
	client  *fake.Clientset
	factory informers.SharedInformerFactory
	// told are the informers that tell, by kind; none unless tellAll was called.
	told map[string]*told

	mu      sync.Mutex
	version int
	objects map[string]runtime.Object
	// written are the objects that were written through the client, in order.
	written []runtime.Object
	// before, if set, runs before each write and may refuse it.
	before func(resource, name string) error
}

func newServer() *server {
	s := &server{client: &fake.Clientset{}, objects: map[string]runtime.Object{}}
	s.client.AddReactor("*", "*", s.react)
	s.factory = informers.NewSharedInformerFactory(s.client, 0)
	return s
}

// informerOf is the factory's informer of the object's kind.
func informerOf(f informers.SharedInformerFactory, o runtime.Object) cache.SharedIndexInformer {
	core, storage := f.Core().V1(), f.Storage().V1()
	switch o.(type) {
	case *corev1.PersistentVolume:
		return core.PersistentVolumes().Informer()
	case *corev1.PersistentVolumeClaim:
		return core.PersistentVolumeClaims().Informer()
	case *corev1.Node:
		return core.Nodes().Informer()
	case *corev1.Pod:
		return core.Pods().Informer()
	case *storagev1.StorageClass:
		return storage.StorageClasses().Informer()
	case *storagev1.CSIStorageCapacity:
		return storage.CSIStorageCapacities().Informer()
	case *storagev1.CSIDriver:
		return storage.CSIDrivers().Informer()
	case *storagev1.VolumeAttachment:
		return storage.VolumeAttachments().Informer()
	case *storagev1.CSINode:
		return storage.CSINodes().Informer()
	}
	panic(fmt.Sprintf("no informer for %T", o))
}

func (s *server) store(o runtime.Object) cache.Store { return informerOf(s.factory, o).GetIndexer() }

// put creates or replaces an object, in the API and in the informer's store.
func (s *server) put(o runtime.Object) runtime.Object {
	s.mu.Lock()
	o = s.keep(o)
	store := s.store(o)
	before, _, err := store.Get(o)
	if err == nil {
		err = store.Add(o)
	}
	s.mu.Unlock()
	if err != nil {
		panic(err)
	}
	s.tell(o, before, o)
	return o
}

// keep needs mu. It copies.
func (s *server) keep(o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	m := accessor(o)
	s.version++
	m.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[resourceOf(o)+" "+m.GetName()] = o
	return o
}

func (s *server) delete(o runtime.Object) {
	s.mu.Lock()
	delete(s.objects, resourceOf(o)+" "+accessor(o).GetName())
	err := s.store(o).Delete(o)
	s.mu.Unlock()
	if err != nil {
		panic(err)
	}
	s.tell(o, o, nil)
}

func accessor(o runtime.Object) interface {
	GetName() string
	GetNamespace() string
	GetResourceVersion() string
	SetResourceVersion(string)
} {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	return m
}

func resourceOf(o runtime.Object) string {
	switch o.(type) {
	case *corev1.PersistentVolume:
		return "persistentvolumes"
	case *corev1.PersistentVolumeClaim:
		return "persistentvolumeclaims"
	}
	return reflect.TypeOf(o).Elem().Name()
}

// react answers the plugins' reads and writes of volumes and claims.
func (s *server) react(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource := action.GetResource().Resource
	if action.GetSubresource() == "binding" {
		return true, &corev1.Binding{}, nil
	}
	switch a := action.(type) {
	case clienttesting.UpdateAction:
		o := a.GetObject()
		return s.replace(action, accessor(o).GetName(), accessor(o).GetResourceVersion(), func(runtime.Object) (runtime.Object, error) { return o, nil })
	case clienttesting.PatchAction:
		var sent struct {
			Metadata struct{ ResourceVersion string }
		}
		if err := json.Unmarshal(a.GetPatch(), &sent); err != nil {
			return true, nil, err
		}
		return s.replace(action, a.GetName(), sent.Metadata.ResourceVersion, func(old runtime.Object) (runtime.Object, error) { return merged(old, a.GetPatch()) })
	case clienttesting.GetAction:
		if o := s.objects[resource+" "+a.GetName()]; o != nil {
			return true, o.DeepCopyObject(), nil
		}
		return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), a.GetName())
	}
	return true, nil, errors.New("the oracle's server does not serve " + action.GetVerb() + " of " + resource)
}

// replace needs mu.
func (s *server) replace(action clienttesting.Action, name, version string, change func(runtime.Object) (runtime.Object, error)) (bool, runtime.Object, error) {
	resource := action.GetResource()
	if s.before != nil {
		if err := s.before(resource.Resource, name); err != nil {
			return true, nil, err
		}
	}
	old := s.objects[resource.Resource+" "+name]
	if old == nil {
		return true, nil, apierrors.NewNotFound(resource.GroupResource(), name)
	}
	if is := accessor(old).GetResourceVersion(); version != "" && version != is {
		return true, nil, apierrors.NewConflict(resource.GroupResource(), name, fmt.Errorf("version %s, not %s", is, version))
	}
	fresh, err := change(old)
	if err != nil {
		return true, nil, err
	}
	now := s.keep(fresh)
	s.written = append(s.written, now)
	return true, now.DeepCopyObject(), nil
}

// merged goes into a new object: what the patch removed must not stay.
func merged(old runtime.Object, patch []byte) (runtime.Object, error) {
	raw, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	if raw, err = jsonpatch.MergePatch(raw, patch); err != nil {
		return nil, err
	}
	fresh, ok := reflect.TypeAssert[runtime.Object](reflect.New(reflect.TypeOf(old).Elem()))
	if !ok {
		return nil, fmt.Errorf("%T is no object", old)
	}
	return fresh, json.Unmarshal(raw, fresh)
}
