package cache

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// Assume makes a plan visible to every later decision, on behalf of the pod
// with the UID owner. It may be repeated. Where any step no longer holds, it says
// which, and the pod has no part in the plan any more.
func (c *Cache) Assume(plan binding.BindPlan, owner string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	if err := c.assume(plan, owner); err != nil {
		c.forget(plan, owner)
		return err
	}
	return nil
}

// assume needs mu.
func (c *Cache) assume(plan binding.BindPlan, owner string) error {
	for _, b := range plan.Binds {
		if _, err := c.unbound(b.Claim, b.ClaimUID); err != nil {
			return err
		}
		if err := c.volumes.assume(b, owner); err != nil {
			return err
		}
	}
	for _, s := range plan.Selects {
		pvc, err := c.unbound(s.Claim, s.ClaimUID)
		if err != nil {
			return err
		}
		c.syncClaim(s.Claim)
		selected := pvc.Annotations[volume.AnnSelectedNode]
		if selected == "" {
			selected = c.ledger.reservedNode(s.ClaimUID)
		}
		if selected != "" && selected != plan.Node {
			return fmt.Errorf("claim %s is being provisioned on %s", s.Claim, selected)
		}
		c.ledger.reserve(factsOfClaim(pvc), plan.Node, owner)
	}
	return nil
}

// unbound returns a claim that is still the one judged and still to be bound.
func (c *Cache) unbound(key, uid string) (*corev1.PersistentVolumeClaim, error) {
	pvc := get[corev1.PersistentVolumeClaim](c.stores.claims, key)
	switch {
	case pvc == nil || string(pvc.UID) != uid:
		return nil, fmt.Errorf("claim %s is gone", key)
	case pvc.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s is being deleted", key)
	case pvc.Spec.VolumeName != "":
		return nil, fmt.Errorf("claim %s was bound to %s meanwhile", key, pvc.Spec.VolumeName)
	}
	return pvc, nil
}

// Forget ends the pod's part in a plan. It may be repeated, and called for a
// plan that was never assumed. What was written stays until the informer has it.
func (c *Cache) Forget(plan binding.BindPlan, owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	c.forget(plan, owner)
}

// forget needs mu.
func (c *Cache) forget(plan binding.BindPlan, owner string) {
	for _, b := range plan.Binds {
		c.volumes.forget(b.Volume, owner)
	}
	now := c.clock.Now()
	for _, s := range plan.Selects {
		c.ledger.release(s.ClaimUID, owner, now)
	}
	c.wakeRun()
}

// AssumedByAnother reports whether a pod other than owner has the volume in its
// plan.
func (c *Cache) AssumedByAnother(volume, owner string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.volumes.assumed[volume]
	if a == nil {
		return false
	}
	_, mine := a.owners[owner]
	return len(a.owners) > 1 || !mine && len(a.owners) > 0
}

// WroteVolume notes that the API server accepted a volume's claimRef.
func (c *Cache) WroteVolume(pv *corev1.PersistentVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	c.volumes.written(pv.Name, pv.ResourceVersion)
}

// WroteClaim notes that the API server accepted a claim's selected node.
func (c *Cache) WroteClaim(pvc *corev1.PersistentVolumeClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	c.ledger.written(string(pvc.UID), pvc.ResourceVersion)
}

// MayHaveWrittenClaim notes that a claim's selected node may have been accepted:
// the call ended without an answer.
func (c *Cache) MayHaveWrittenClaim(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ledger.uncertain(uid)
}
