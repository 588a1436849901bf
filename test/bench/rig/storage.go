package rig

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/volume"
)

// storageWorkers is how many claims, and how many volumes, are worked on at once.
const storageWorkers = 32

// Storage stands in for a provisioner, and for the PV controller where there is
// no real one: it answers at once.
type Storage struct {
	client kubernetes.Interface
	watch  *Watch
	// toProvision holds names of claims, toBind names of volumes.
	toProvision, toBind workqueue.TypedRateLimitingInterface[string]
	work                sync.WaitGroup
}

// NewStorage makes a stand-in that hears of changes by the watch. With binds it
// is the PV controller too.
func (r *Rig) NewStorage(w *Watch, binds bool) (*Storage, error) {
	limits := workqueue.DefaultTypedControllerRateLimiter[string]
	s := &Storage{
		client: r.client, watch: w,
		toProvision: workqueue.NewTypedRateLimitingQueue(limits()), toBind: workqueue.NewTypedRateLimitingQueue(limits()),
	}
	err := onChange(w.claims, func(c *corev1.PersistentVolumeClaim) {
		if wantsVolume(c) {
			s.toProvision.Add(c.Name)
		}
	})
	if !binds {
		return s, err
	}
	return s, errors.Join(err, onChange(w.volumes, func(pv *corev1.PersistentVolume) {
		if pv.Spec.ClaimRef != nil && pv.Status.Phase != corev1.VolumeBound {
			s.toBind.Add(pv.Name)
		}
	}))
}

// Start begins to work, until ctx ends.
func (s *Storage) Start(ctx context.Context) {
	context.AfterFunc(ctx, func() {
		s.toProvision.ShutDown()
		s.toBind.ShutDown()
	})
	for range storageWorkers {
		s.work.Go(func() { drain(ctx, s.toProvision, s.provision) })
		s.work.Go(func() { drain(ctx, s.toBind, s.bind) })
	}
}

// Wait returns when the work has ended.
func (s *Storage) Wait() { s.work.Wait() }

func drain(ctx context.Context, q workqueue.TypedRateLimitingInterface[string], do func(context.Context, string) error) {
	for {
		key, ended := q.Get()
		if ended {
			return
		}
		if err := do(ctx, key); err != nil && ctx.Err() == nil {
			// A cache that is behind is what a rate-limited queue is for.
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				klog.FromContext(ctx).Error(err, "standing in for the storage failed", "key", key)
			}
			q.AddRateLimited(key)
		} else {
			q.Forget(key)
		}
		q.Done(key)
	}
}

// wantsVolume tells whether the scheduler has chosen a node where the claim's
// volume is to be made. A claim that is matched with a volume never has one.
func wantsVolume(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName == "" && c.Annotations[volume.AnnSelectedNode] != ""
}

// provision does what an external-provisioner does for a claim, but the call of
// the driver.
func (s *Storage) provision(ctx context.Context, name string) error {
	c, err := s.watch.claim(name)
	if err != nil || !wantsVolume(c) {
		return err
	}
	pv := madeVolume(c, c.Annotations[volume.AnnSelectedNode])
	_, err = s.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating volume %s: %w", pv.Name, err)
	}
	return nil
}

// bind does what the PV controller does with a volume that names its claim, in
// its order (pkg/controller/volume/persistentvolume, bind): the volume's phase,
// the claim, the claim's status.
func (s *Storage) bind(ctx context.Context, name string) error {
	known, err := s.watch.volume(name)
	if err != nil || known.Spec.ClaimRef == nil {
		return err
	}
	c, err := s.watch.claim(known.Spec.ClaimRef.Name)
	if err != nil {
		return err
	}
	if known.Spec.ClaimRef.UID != c.UID {
		return fmt.Errorf("volume %s is for claim %s of another life", name, c.Name)
	}
	if known.Status.Phase != corev1.VolumeBound {
		pv := known.DeepCopy()
		pv.Status.Phase = corev1.VolumeBound
		if _, err := s.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, pv, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("writing the phase of volume %s: %w", name, err)
		}
	}
	if c.Spec.VolumeName == "" {
		c = c.DeepCopy()
		c.Spec.VolumeName = name
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBoundByController, "yes")
		if c, err = s.client.CoreV1().PersistentVolumeClaims(Namespace).Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("binding claim: %w", err)
		}
	}
	if c.Status.Phase != corev1.ClaimBound {
		c = c.DeepCopy()
		c.Status.Phase, c.Status.AccessModes, c.Status.Capacity = corev1.ClaimBound, known.Spec.AccessModes, known.Spec.Capacity
		if _, err := s.client.CoreV1().PersistentVolumeClaims(Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("writing the phase of a claim: %w", err)
		}
	}
	return nil
}
