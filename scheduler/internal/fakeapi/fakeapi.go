// Package fakeapi is an API server's behaviour as far as the scheduler's rooms rely
// on it, for their fast tests. The same is shown on a real one by test/oracle and
// test/e2e.
package fakeapi

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-storage/berth/volume"
)

// Cluster is a fake clientset whose objects get a new version with every write, and
// that refuses a patch on another version.
type Cluster struct {
	Client  *fake.Clientset
	Factory informers.SharedInformerFactory
	t       testing.TB

	mu sync.Mutex
	// version of the last write, guarded by mu.
	version int
	// beforePatch, if set, runs before each patch, and may fail it. Guarded by mu.
	beforePatch func(resource, name string) error
}

// New makes a cluster of these objects. Its informers are started by the caller.
func New(t testing.TB, objects ...runtime.Object) *Cluster {
	c := &Cluster{t: t, Client: fake.NewClientset()}
	c.Client.PrependReactor("patch", "*", c.patch)
	c.Client.PrependReactor("create", "pods", c.bind)
	for _, o := range objects {
		c.Put(o)
	}
	c.Factory = informers.NewSharedInformerFactory(c.Client, 0)
	return c
}

// ResourceOf is what objects of a kind are served as.
func ResourceOf(o runtime.Object) schema.GroupVersionResource {
	switch o.(type) {
	case *corev1.PersistentVolume:
		return corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	case *corev1.PersistentVolumeClaim:
		return corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	case *corev1.Node:
		return corev1.SchemeGroupVersion.WithResource("nodes")
	case *corev1.Pod:
		return corev1.SchemeGroupVersion.WithResource("pods")
	case *storagev1.StorageClass:
		return storagev1.SchemeGroupVersion.WithResource("storageclasses")
	case *storagev1.CSIStorageCapacity:
		return storagev1.SchemeGroupVersion.WithResource("csistoragecapacities")
	case *storagev1.CSIDriver:
		return storagev1.SchemeGroupVersion.WithResource("csidrivers")
	case *storagev1.VolumeAttachment:
		return storagev1.SchemeGroupVersion.WithResource("volumeattachments")
	case *storagev1.CSINode:
		return storagev1.SchemeGroupVersion.WithResource("csinodes")
	}
	panic(fmt.Sprintf("no resource for %T", o))
}

// Put creates or replaces an object.
func (c *Cluster) Put(o runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Write(o); err != nil {
		panic(err)
	}
}

// Write is Put for who holds the lock, as what BeforePatch runs does. It copies:
// informers keep what they are given.
func (c *Cluster) Write(o runtime.Object) error {
	o = o.DeepCopyObject()
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	c.version++
	m.SetResourceVersion(strconv.Itoa(c.version))
	gvr := ResourceOf(o)
	if _, err := c.Client.Tracker().Get(gvr, m.GetNamespace(), m.GetName()); apierrors.IsNotFound(err) {
		return c.Client.Tracker().Create(gvr, o, m.GetNamespace())
	}
	return c.Client.Tracker().Update(gvr, o, m.GetNamespace())
}

// BeforePatch runs a function before each patch, and each binding of a pod (as a patch
// of "bindings"), from now on, with the lock held; it may fail it.
func (c *Cluster) BeforePatch(f func(resource, name string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beforePatch = f
}

// Delete deletes an object.
func (c *Cluster) Delete(o runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := meta.Accessor(o)
	if err == nil {
		err = c.Client.Tracker().Delete(ResourceOf(o), m.GetNamespace(), m.GetName())
	}
	if err != nil {
		panic(err)
	}
}

// bind is a pod's binding, which an API server takes once.
func (c *Cluster) bind(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetSubresource() != "binding" {
		return false, nil, nil
	}
	wanted, ok := action.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
	if !ok {
		return false, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.beforePatch != nil {
		if err := c.beforePatch("bindings", wanted.Name); err != nil {
			return true, nil, err
		}
	}
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	old, err := c.Client.Tracker().Get(pods, wanted.Namespace, wanted.Name)
	if err != nil {
		return true, nil, err
	}
	pod := old.(*corev1.Pod).DeepCopy()
	if pod.UID != wanted.UID || pod.Spec.NodeName != "" {
		return true, nil, apierrors.NewConflict(pods.GroupResource(), wanted.Name, fmt.Errorf("pod %s is on node %q", pod.UID, pod.Spec.NodeName))
	}
	pod.Spec.NodeName = wanted.Target.Name
	return true, wanted, c.Write(pod)
}

// patch is a merge patch with metadata.resourceVersion as its precondition.
func (c *Cluster) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	p := action.(clienttesting.PatchAction)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.beforePatch != nil {
		if err := c.beforePatch(p.GetResource().Resource, p.GetName()); err != nil {
			return true, nil, err
		}
	}
	old, err := c.Client.Tracker().Get(p.GetResource(), p.GetNamespace(), p.GetName())
	if err != nil {
		return true, nil, err
	}
	var sent metav1.PartialObjectMetadata
	if err := json.Unmarshal(p.GetPatch(), &sent); err != nil {
		return true, nil, err
	}
	m, err := meta.Accessor(old)
	if err != nil {
		return true, nil, err
	}
	if sent.ResourceVersion != "" && sent.ResourceVersion != m.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(p.GetResource().GroupResource(), p.GetName(), fmt.Errorf("version %s, not %s", m.GetResourceVersion(), sent.ResourceVersion))
	}
	raw, err := json.Marshal(old)
	if err != nil {
		return true, nil, err
	}
	merged, err := jsonpatch.MergePatch(raw, p.GetPatch())
	if err != nil {
		return true, nil, err
	}
	// Into a new object: what the patch removed must not stay.
	fresh := reflect.New(reflect.TypeOf(old).Elem()).Interface().(runtime.Object)
	if err := json.Unmarshal(merged, fresh); err != nil {
		return true, nil, err
	}
	if err := c.Write(fresh); err != nil {
		return true, nil, err
	}
	now, err := c.Client.Tracker().Get(p.GetResource(), p.GetNamespace(), p.GetName())
	return true, now, err
}

// Claim is a claim of namespace default, as the API has it.
func (c *Cluster) Claim(name string) *corev1.PersistentVolumeClaim {
	o, err := c.Client.Tracker().Get(ResourceOf(&corev1.PersistentVolumeClaim{}), "default", name)
	if err != nil {
		c.t.Fatalf("claim %s: %v", name, err)
	}
	return o.(*corev1.PersistentVolumeClaim).DeepCopy()
}

// Volume is a PersistentVolume, as the API has it.
func (c *Cluster) Volume(name string) *corev1.PersistentVolume {
	o, err := c.Client.Tracker().Get(ResourceOf(&corev1.PersistentVolume{}), "", name)
	if err != nil {
		c.t.Fatalf("volume %s: %v", name, err)
	}
	return o.(*corev1.PersistentVolume).DeepCopy()
}

// PVController answers what the scheduler writes as the PV controller and a
// provisioner would, until ctx ends. Volumes are numbered from 100.
func (c *Cluster) PVController(ctx context.Context) {
	claims, err := c.Client.CoreV1().PersistentVolumeClaims("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	volumes, err := c.Client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer claims.Stop()
		defer volumes.Stop()
		number := int64(100)
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-claims.ResultChan():
				pvc, ok := e.Object.(*corev1.PersistentVolumeClaim)
				if !ok || pvc.Annotations[volume.AnnSelectedNode] == "" || pvc.Spec.VolumeName != "" {
					continue
				}
				number++
				pv := Provisioned(pvc, number)
				c.Put(pv)
				c.Put(BoundTo(pvc, pv.Name))
			case e := <-volumes.ResultChan():
				pv, ok := e.Object.(*corev1.PersistentVolume)
				if !ok || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" || pv.Status.Phase != corev1.VolumeAvailable {
					continue
				}
				pv = pv.DeepCopy()
				pv.Status.Phase = corev1.VolumeBound
				c.Put(pv)
				c.Put(BoundTo(c.Claim(pv.Spec.ClaimRef.Name), pv.Name))
			}
		}
	}()
}

// Provisioned is the volume that the driver makes for a claim that has its node.
func Provisioned(pvc *corev1.PersistentVolumeClaim, number int64) *corev1.PersistentVolume {
	pv := PV(volume.PVName(string(pvc.UID)), *pvc.Spec.StorageClassName, pvc.Spec.Resources.Requests.Storage().String(), pvc.Annotations[volume.AnnSelectedNode])
	pv.Annotations = map[string]string{volume.AnnotationPool: "pool-" + pvc.Annotations[volume.AnnSelectedNode], volume.AnnotationAllocation: strconv.FormatInt(number, 10)}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID}
	pv.Status.Phase = corev1.VolumeBound
	return pv
}

// BoundTo is the claim bound to the volume, by the PV controller.
func BoundTo(pvc *corev1.PersistentVolumeClaim, pv string) *corev1.PersistentVolumeClaim {
	pvc = pvc.DeepCopy()
	pvc.Spec.VolumeName = pv
	metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnBindCompleted, "yes")
	pvc.Status.Phase = corev1.ClaimBound
	return pvc
}
