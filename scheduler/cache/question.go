package cache

import (
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// Question is what a pod asks of every node, and the view to judge it by. Both
// are of one moment.
type Question struct {
	*binding.Question
	// Immediate describes each claim that the PV controller has yet to bind.
	Immediate []string
}

// Ask classifies a pod's claims, as the informer has them with every decision
// laid over. An error is a broken object and names it.
func (c *Cache) Ask(pvcs []*corev1.PersistentVolumeClaim) (Question, error) {
	c.loaded.Do(c.load)
	c.mu.Lock()
	defer c.mu.Unlock()
	var q Question
	var bound, delayed []binding.Claim
	for _, pvc := range pvcs {
		// The ledger must not be older than the claim that is judged: it would
		// hold a claim's bytes against the claim.
		c.syncClaim(keyOf(pvc))
		class, err := c.class(binding.ClassName(pvc))
		if err != nil {
			return Question{}, err
		}
		state, err := binding.Classify(pvc, class)
		if err != nil {
			return Question{}, err
		}
		if state == binding.StateImmediate {
			q.Immediate = append(q.Immediate, describe(pvc, class))
			continue
		}
		claim, err := c.claim(pvc, class)
		if err != nil {
			return Question{}, err
		}
		if state == binding.StateBound {
			bound = append(bound, claim)
		} else {
			delayed = append(delayed, claim)
		}
	}
	q.Question = binding.NewQuestion(binding.NewPod(bound, delayed), c.snapshot())
	return q, nil
}

// describe names a claim and, where that is known, what it waits for.
func describe(pvc *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	s := "claim " + keyOf(pvc)
	if why := binding.WhyImmediate(pvc, class); why != "" {
		s += ": " + why
	}
	return s
}

func keyOf(pvc *corev1.PersistentVolumeClaim) string { return pvc.Namespace + "/" + pvc.Name }

// class is nil where the name is empty or unknown.
func (c *Cache) class(name string) (*storagev1.StorageClass, error) {
	if name == "" {
		return nil, nil
	}
	class, err := c.classes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading storage class %q: %w", name, err)
	}
	return class, nil
}

// claim needs mu. class may be nil for a bound claim.
func (c *Cache) claim(pvc *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (binding.Claim, error) {
	out := binding.Claim{
		Key: keyOf(pvc), UID: string(pvc.UID), Class: binding.Class{Name: binding.ClassName(pvc)},
		Block:       pvc.Spec.VolumeMode != nil && *pvc.Spec.VolumeMode == corev1.PersistentVolumeBlock,
		AccessModes: pvc.Spec.AccessModes, VolumeName: pvc.Spec.VolumeName,
		SelectedNode: pvc.Annotations[volume.AnnSelectedNode],
	}
	if request, ok := pvc.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		out.Request, out.HasRequest = volume.Bytes(request), true
	}
	if pvc.Spec.VolumeAttributesClassName != nil {
		out.AttributesClass = *pvc.Spec.VolumeAttributesClassName
	}
	if out.SelectedNode == "" {
		out.SelectedNode = c.ledger.reservedNode(out.UID)
	}
	if out.VolumeName != "" {
		if e := c.volumes.byName[out.VolumeName]; e != nil {
			out.Volume = &e.Volume
		}
		return out, nil
	}
	out.Reserved = c.volumes.reservedFor(&out)
	if pvc.Spec.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(pvc.Spec.Selector)
		if err != nil {
			return out, fmt.Errorf("claim %s: spec.selector: %w", out.Key, err)
		}
		out.Selector = selector
	}
	if class != nil {
		out.Class.Provisions = class.Provisioner != "" && class.Provisioner != volume.NoProvisioner
		out.Class.AllowedTopologies = class.AllowedTopologies
		tracks, err := c.tracksCapacity(class.Provisioner)
		if err != nil {
			return out, err
		}
		out.Class.TracksCapacity = tracks
		out.Source = c.source(pvc, class.Provisioner)
		out.Refused = c.refusals.of(out.Class.Name, out.Request)
	}
	return out, nil
}

// tracksCapacity is false for a driver that is unknown or has not opted in.
func (c *Cache) tracksCapacity(provisioner string) (bool, error) {
	driver, err := c.drivers.Get(provisioner)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading CSIDriver %q: %w", provisioner, err)
	}
	return driver.Spec.StorageCapacity != nil && *driver.Spec.StorageCapacity, nil
}

// Readers of the informers' stores: the API's truth, without the overlay. What
// is returned is shared and must not be changed; nil means not there.

// Claim reads a claim by namespace and name.
func (c *Cache) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return c.claimsOf.PersistentVolumeClaims(namespace).Get(name)
}

// ClaimByKey reads a claim by namespace/name.
func (c *Cache) ClaimByKey(key string) *corev1.PersistentVolumeClaim {
	return get[corev1.PersistentVolumeClaim](c.stores.claims, key)
}

// Volume reads a PersistentVolume.
func (c *Cache) Volume(name string) *corev1.PersistentVolume {
	return get[corev1.PersistentVolume](c.stores.volumes, name)
}

// Node reads a node.
func (c *Cache) Node(name string) *corev1.Node { return get[corev1.Node](c.stores.nodes, name) }

// Nodes reads all nodes, in no order.
func (c *Cache) Nodes() iter.Seq[*corev1.Node] {
	return func(yield func(*corev1.Node) bool) {
		for _, obj := range c.stores.nodes.List() {
			if node, ok := obj.(*corev1.Node); ok && !yield(node) {
				return
			}
		}
	}
}

// Pod reads a pod.
func (c *Cache) Pod(namespace, name string) *corev1.Pod {
	return get[corev1.Pod](c.stores.pods, cache.NewObjectName(namespace, name).String())
}

// Driver reads a CSIDriver; nil where it is not there.
func (c *Cache) Driver(name string) *storagev1.CSIDriver {
	driver, err := c.drivers.Get(name)
	if err != nil {
		return nil
	}
	return driver
}

// Class reads a StorageClass; nil where it is not there.
func (c *Cache) Class(name string) *storagev1.StorageClass {
	class, err := c.classes.Get(name)
	if err != nil {
		return nil
	}
	return class
}

// Reaches reports whether the node lies where the PersistentVolume of that name
// can be used, and an error where that cannot be told. It asks the cache's own
// reading of the volume, which Observe or the informer's event has brought.
func (c *Cache) Reaches(pv string, node *binding.Node) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncVolume(pv)
	e := c.volumes.byName[pv]
	if e == nil {
		return false, fmt.Errorf("volume %s does not exist any more", pv)
	}
	reached, err := e.Reachable(node)
	if err != nil {
		return false, fmt.Errorf("translating volume %s to CSI: %w", pv, err)
	}
	return reached, nil
}

// ServedBy reports whether the class has capacity in the pool.
func (c *Cache) ServedBy(class, pool string) bool {
	c.loaded.Do(c.load)
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.ledger.pools[pool]
	if p == nil {
		return false
	}
	for _, o := range p.objects {
		if o.class == class {
			return true
		}
	}
	return false
}

// SharePool reports whether two classes have volumes in one pool, so that what
// becomes free for one may help the other. A class shares with itself.
func (c *Cache) SharePool(a, b string) bool {
	if a == b {
		return true
	}
	c.loaded.Do(c.load)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ledger.pairs[[2]string{a, b}] > 0
}
