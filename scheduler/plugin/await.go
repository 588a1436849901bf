package plugin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// awaited reports what a written plan still waits for, zero when nothing, or
// an error where waiting is of no use. It reads the informers' objects, not the
// overlay: what others did is the question.
func (p *Plugin) awaited(pod *corev1.Pod, plan binding.BindPlan, w writes) (wait, error) {
	if current := p.cache.Pod(pod.Namespace, pod.Name); current == nil || current.UID != pod.UID {
		return wait{}, fmt.Errorf("pod %s/%s does not exist any more", pod.Namespace, pod.Name)
	}
	node, err := p.awaitedNode(plan.Node)
	if err != nil {
		return wait{}, err
	}
	// Every claim is looked at, so that a failure of one is seen while another
	// is still awaited.
	var first wait
	note := func(waiting wait) {
		if first == (wait{}) {
			first = waiting
		}
	}
	for _, b := range plan.Binds {
		waiting, err := p.awaitBind(b, node, w.volumes[b.Volume])
		if err != nil {
			return wait{}, err
		}
		note(waiting)
	}
	for _, s := range plan.Selects {
		waiting, err := p.awaitSelect(s, node, w.claims[s.Claim])
		if err != nil {
			return wait{}, err
		}
		note(waiting)
	}
	return first, nil
}

// awaitedNode is the node as it is now: it may have lost a label since the plan
// was made.
func (p *Plugin) awaitedNode(name string) (*binding.Node, error) {
	node := p.cache.Node(name)
	if node == nil {
		return nil, fmt.Errorf("node %s does not exist any more", name)
	}
	csiNode, err := p.readCSINode(name)
	if err != nil {
		return nil, err
	}
	n := binding.Node{Name: node.Name, Labels: node.Labels, Migrated: migrated(csiNode)}
	return &n, nil
}

// awaitBind waits for the PV controller to complete a static binding.
func (p *Plugin) awaitBind(b binding.Bind, node *binding.Node, version string) (wait, error) {
	pvc, err := p.judgedClaim(b.Claim, b.ClaimUID)
	if err != nil {
		return wait{}, err
	}
	pv := p.cache.Volume(b.Volume)
	switch {
	case pv == nil:
		return wait{}, fmt.Errorf("volume %s does not exist any more", b.Volume)
	case older(pv.ResourceVersion, version):
		return wait{waitSight, b.Claim, fmt.Sprintf("volume %s: waiting to see its reservation", b.Volume)}, nil
	}
	switch reached, err := p.cache.Reaches(b.Volume, node); {
	case err != nil:
		return wait{}, err
	case !reached:
		return wait{}, fmt.Errorf("volume %s can no longer be reached from node %s", b.Volume, node.Name)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "":
		return wait{}, fmt.Errorf("volume %s lost its reservation for claim %s", b.Volume, b.Claim)
	case string(pv.Spec.ClaimRef.UID) != b.ClaimUID:
		return wait{}, fmt.Errorf("volume %s was taken by claim %s/%s", b.Volume, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
	case pvc.Spec.VolumeName != "" && pvc.Spec.VolumeName != b.Volume:
		return wait{}, fmt.Errorf("claim %s was bound to volume %s instead of %s", b.Claim, pvc.Spec.VolumeName, b.Volume)
	case !binding.IsBound(pvc):
		return waitForBinding(b.Claim, b.Volume), nil
	}
	return wait{}, nil
}

// awaitSelect waits for a claim to be provisioned and bound.
func (p *Plugin) awaitSelect(s binding.Select, node *binding.Node, version string) (wait, error) {
	pvc, err := p.judgedClaim(s.Claim, s.ClaimUID)
	if err != nil {
		return wait{}, err
	}
	switch selected := pvc.Annotations[volume.AnnSelectedNode]; {
	case older(pvc.ResourceVersion, version):
		return wait{waitSight, s.Claim, fmt.Sprintf("claim %s: waiting to see its selected node", s.Claim)}, nil
	case selected == "":
		return wait{}, fmt.Errorf("claim %s: the provisioner gave node %s back", s.Claim, node.Name)
	case selected != node.Name:
		return wait{}, fmt.Errorf("claim %s: another node, %s, was selected", s.Claim, selected)
	}
	if pvc.Spec.VolumeName == "" {
		return wait{waitProvisioning, s.Claim, fmt.Sprintf("claim %s: waiting for its volume to be provisioned on node %s", s.Claim, node.Name)}, nil
	}
	pv := p.cache.Volume(pvc.Spec.VolumeName)
	if pv == nil {
		return wait{waitSight, s.Claim, fmt.Sprintf("claim %s: waiting to see volume %s", s.Claim, pvc.Spec.VolumeName)}, nil
	}
	switch reached, err := p.cache.Reaches(pv.Name, node); {
	case err != nil:
		return wait{}, err
	case !reached:
		return wait{}, fmt.Errorf("claim %s: volume %s cannot be reached from node %s", s.Claim, pv.Name, node.Name)
	case !binding.IsBound(pvc):
		return waitForBinding(s.Claim, pv.Name), nil
	}
	return wait{}, nil
}

// judgedClaim is the claim that the plan was made for.
func (p *Plugin) judgedClaim(key, uid string) (*corev1.PersistentVolumeClaim, error) {
	pvc := p.cache.ClaimByKey(key)
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
