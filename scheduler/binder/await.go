package binder

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// Awaits reports what a plan whose writes are done still waits for, zero when
// nothing, or an error where waiting is of no use. It reads the informers'
// objects, not the overlay: what others did is the question.
func (b *Binder) Awaits(pod *corev1.Pod, plan binding.BindPlan, w Written) (Waiting, error) {
	if current := b.cache.Pod(pod.Namespace, pod.Name); current == nil || current.UID != pod.UID {
		return Waiting{}, fmt.Errorf("pod %s/%s does not exist any more", pod.Namespace, pod.Name)
	}
	node, err := b.awaitedNode(plan.Node)
	if err != nil {
		return Waiting{}, err
	}
	// Every claim is looked at, so that a failure of one is seen while another
	// is still awaited.
	var first Waiting
	note := func(waiting Waiting) {
		if first == (Waiting{}) {
			first = waiting
		}
	}
	for _, step := range plan.Binds {
		waiting, err := b.awaitBind(step, node, w.Volumes[step.Volume])
		if err != nil {
			return Waiting{}, err
		}
		note(waiting)
	}
	for _, step := range plan.Selects {
		waiting, err := b.awaitSelect(step, node, w.Claims[step.Claim])
		if err != nil {
			return Waiting{}, err
		}
		note(waiting)
	}
	return first, nil
}

// awaitedNode is the node as it is now: it may have lost a label since the plan
// was made.
func (b *Binder) awaitedNode(name string) (*binding.Node, error) {
	node := b.cache.Node(name)
	if node == nil {
		return nil, fmt.Errorf("node %s does not exist any more", name)
	}
	csiNode, err := b.nodes.CSINode(name)
	if err != nil {
		return nil, err
	}
	n := binding.Node{Name: node.Name, Labels: node.Labels, Migrated: migrated(csiNode)}
	return &n, nil
}

// awaitBind waits for the PV controller to complete a static binding.
func (b *Binder) awaitBind(s binding.Bind, node *binding.Node, version string) (Waiting, error) {
	pvc, err := b.judgedClaim(s.Claim, s.ClaimUID)
	if err != nil {
		return Waiting{}, err
	}
	pv := b.cache.Volume(s.Volume)
	switch {
	case pv == nil:
		return Waiting{}, fmt.Errorf("volume %s does not exist any more", s.Volume)
	case older(pv.ResourceVersion, version):
		return Waiting{waitSight, s.Claim, fmt.Sprintf("volume %s: waiting to see its reservation", s.Volume)}, nil
	}
	switch reached, err := b.cache.Reaches(s.Volume, node); {
	case err != nil:
		return Waiting{}, err
	case !reached:
		return Waiting{}, fmt.Errorf("volume %s can no longer be reached from node %s", s.Volume, node.Name)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "":
		return Waiting{}, fmt.Errorf("volume %s lost its reservation for claim %s", s.Volume, s.Claim)
	case string(pv.Spec.ClaimRef.UID) != s.ClaimUID:
		return Waiting{}, fmt.Errorf("volume %s was taken by claim %s/%s", s.Volume, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
	case pvc.Spec.VolumeName != "" && pvc.Spec.VolumeName != s.Volume:
		return Waiting{}, fmt.Errorf("claim %s was bound to volume %s instead of %s", s.Claim, pvc.Spec.VolumeName, s.Volume)
	case !binding.IsBound(pvc):
		return waitForBinding(s.Claim, s.Volume), nil
	}
	return Waiting{}, nil
}

// awaitSelect waits for a claim to be provisioned and bound.
func (b *Binder) awaitSelect(s binding.Select, node *binding.Node, version string) (Waiting, error) {
	pvc, err := b.judgedClaim(s.Claim, s.ClaimUID)
	if err != nil {
		return Waiting{}, err
	}
	switch selected := pvc.Annotations[volume.AnnSelectedNode]; {
	case older(pvc.ResourceVersion, version):
		return Waiting{waitSight, s.Claim, fmt.Sprintf("claim %s: waiting to see its selected node", s.Claim)}, nil
	case selected == "":
		return Waiting{}, fmt.Errorf("claim %s: the provisioner gave node %s back", s.Claim, node.Name)
	case selected != node.Name:
		return Waiting{}, fmt.Errorf("claim %s: another node, %s, was selected", s.Claim, selected)
	}
	if pvc.Spec.VolumeName == "" {
		return Waiting{waitProvisioning, s.Claim, fmt.Sprintf("claim %s: waiting for its volume to be provisioned on node %s", s.Claim, node.Name)}, nil
	}
	pv := b.cache.Volume(pvc.Spec.VolumeName)
	if pv == nil {
		return Waiting{waitSight, s.Claim, fmt.Sprintf("claim %s: waiting to see volume %s", s.Claim, pvc.Spec.VolumeName)}, nil
	}
	switch reached, err := b.cache.Reaches(pv.Name, node); {
	case err != nil:
		return Waiting{}, err
	case !reached:
		return Waiting{}, fmt.Errorf("claim %s: volume %s cannot be reached from node %s", s.Claim, pv.Name, node.Name)
	case !binding.IsBound(pvc):
		return waitForBinding(s.Claim, pv.Name), nil
	}
	return Waiting{}, nil
}

// judgedClaim is the claim that the plan was made for.
func (b *Binder) judgedClaim(key, uid string) (*corev1.PersistentVolumeClaim, error) {
	pvc := b.cache.ClaimByKey(key)
	switch {
	case pvc == nil || string(pvc.UID) != uid:
		return nil, fmt.Errorf("claim %s does not exist any more", key)
	case pvc.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s is being deleted", key)
	}
	return pvc, nil
}

// older reports whether the informer has not yet seen what was written.
func older(seen, written string) bool {
	n, err := resourceversion.CompareResourceVersion(seen, written)
	return err == nil && n < 0
}
