package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-storage/berth/volume"
)

// api is an API server, a provisioner and a PV controller that answer at once, in
// this process: what is measured is the time of who asks them.
type api struct {
	client  *fake.Clientset
	tracker clienttesting.ObjectTracker
	factory informers.SharedInformerFactory

	mu sync.Mutex
	// version of the last write, guarded by mu.
	version int
}

// newAPI does without fake.NewClientset, which counts who owns which field, and takes
// longer for it than everything that is measured.
func newAPI(objects []runtime.Object) (*api, error) {
	a := &api{client: &fake.Clientset{}, tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()), version: 1}
	for _, o := range objects {
		if err := a.tracker.Add(o); err != nil {
			return nil, fmt.Errorf("creating a %T: %w", o, err)
		}
	}
	a.client.AddReactor("patch", "persistentvolumeclaims", a.selected)
	a.client.AddReactor("create", "pods", a.placed)
	a.client.AddReactor("*", "*", clienttesting.ObjectReaction(a.tracker))
	a.client.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := a.tracker.Watch(action.GetResource(), action.GetNamespace())
		return true, w, err
	})
	a.factory = informers.NewSharedInformerFactory(a.client, 0)
	return a, nil
}

func (a *api) next() string {
	a.version++
	return strconv.Itoa(a.version)
}

// selected takes the selected node of a claim, makes its volume and binds the two.
func (a *api) selected(action clienttesting.Action) (bool, runtime.Object, error) {
	patch, ok := action.(clienttesting.PatchAction)
	if !ok {
		return false, nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	old, err := a.tracker.Get(claims, namespace, patch.GetName())
	if err != nil {
		return true, nil, err
	}
	asked := old.DeepCopyObject().(*corev1.PersistentVolumeClaim)
	if err := json.Unmarshal(patch.GetPatch(), asked); err != nil {
		return true, nil, err
	}
	asked.ResourceVersion = a.next()
	if err := a.tracker.Update(claims, asked, namespace); err != nil {
		return true, nil, err
	}
	on := asked.Annotations[volume.AnnSelectedNode]
	pv := localVolume("pv-"+asked.Name, *asked.Spec.StorageClassName, on, 2)
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: pv.Name}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: asked.Name, UID: asked.UID}
	pv.Status.Phase = corev1.VolumeBound
	pv.Annotations = map[string]string{volume.AnnotationPool: "pool-" + on, volume.AnnotationAllocation: strconv.Itoa(a.version)}
	if err := a.tracker.Create(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""); err != nil {
		return true, nil, err
	}
	bound := bind(asked.DeepCopy(), pv.Name)
	bound.ResourceVersion = a.next()
	return true, asked, a.tracker.Update(claims, bound, namespace)
}

// placed takes a pod's binding.
func (a *api) placed(action clienttesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(clienttesting.CreateAction)
	if !ok || action.GetSubresource() != "binding" {
		return false, nil, nil
	}
	binding := create.GetObject().(*corev1.Binding)
	a.mu.Lock()
	defer a.mu.Unlock()
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	old, err := a.tracker.Get(pods, namespace, binding.Name)
	if err != nil {
		return true, nil, err
	}
	pod := old.DeepCopyObject().(*corev1.Pod)
	pod.Spec.NodeName, pod.ResourceVersion = binding.Target.Name, a.next()
	return true, binding, a.tracker.Update(pods, pod, namespace)
}

// arrive creates a pod and its claim, and waits until the informers have them.
func (a *api) arrive(ctx context.Context, p *corev1.Pod, c *corev1.PersistentVolumeClaim) error {
	for _, o := range []runtime.Object{c, p} {
		if err := a.tracker.Add(o); err != nil {
			return fmt.Errorf("creating a %T: %w", o, err)
		}
	}
	return a.seen(ctx, func() bool { return a.knows(p) })
}

// leave deletes a pod and what was made for it, and waits until the informers know.
func (a *api) leave(ctx context.Context, p *corev1.Pod, claim string) error {
	for _, o := range []struct{ resource, namespace, name string }{
		{"pods", namespace, p.Name}, {"persistentvolumeclaims", namespace, claim}, {"persistentvolumes", "", "pv-" + claim},
	} {
		if err := a.tracker.Delete(corev1.SchemeGroupVersion.WithResource(o.resource), o.namespace, o.name); err != nil {
			return fmt.Errorf("deleting of %s: %w", o.resource, err)
		}
	}
	a.client.ClearActions()
	return a.seen(ctx, func() bool { return !a.knows(p) })
}

func (a *api) knows(p *corev1.Pod) bool {
	core := a.factory.Core().V1()
	_, noPod := core.Pods().Lister().Pods(namespace).Get(p.Name)
	_, noClaim := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(namespace).Get(p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName)
	return !apierrors.IsNotFound(noPod) && !apierrors.IsNotFound(noClaim)
}

// seen waits for the informers, between two measurements.
func (a *api) seen(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Microsecond):
		}
	}
	return nil
}
