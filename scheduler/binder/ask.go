package binder

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// ClaimRef is a pod's reference to a claim.
type ClaimRef struct {
	Name string
	// Ephemeral: the claim is made for the pod and must be owned by it.
	Ephemeral bool
}

// ClaimRefs lists a pod's claims. Other volumes are nobody's business here.
func ClaimRefs(pod *corev1.Pod) []ClaimRef {
	var out []ClaimRef
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		switch {
		case vol.PersistentVolumeClaim != nil:
			out = append(out, ClaimRef{Name: vol.PersistentVolumeClaim.ClaimName})
		case vol.Ephemeral != nil:
			out = append(out, ClaimRef{Name: ephemeral.VolumeClaimName(pod, vol), Ephemeral: true})
		}
	}
	return out
}

// Volumes are a pod's, as the informers have them.
type Volumes struct {
	Refs []ClaimRef
	// Claims are those that were found, each once, up to the one that Refusal
	// is about.
	Claims []*corev1.PersistentVolumeClaim
	// Refusal keeps the pod from every node: a claim is missing or broken.
	Refusal *volume.Refusal
	// everywhere are those that count against attach limits on any node; Attached
	// has also those that count only where the node has a CSINode.
	everywhere, Attached []volume.Key
}

// Judged reports whether the pod has volumes that decide about its node.
func Judged(pod *corev1.Pod) bool { return len(ClaimRefs(pod)) > 0 || cache.HasInline(pod) }

// Read looks up a pod's volumes.
func (b *Binder) Read(pod *corev1.Pod) (Volumes, error) {
	v := Volumes{Refs: ClaimRefs(pod)}
	var err error
	if v.Claims, v.Refusal, err = b.claims(pod, v.Refs); err != nil {
		return Volumes{}, err
	}
	v.everywhere, v.Attached = b.cache.Wanted(pod, v.Claims)
	return v, nil
}

// Question is what a pod asks of every node. It never changes, and is asked by
// many goroutines.
type Question struct {
	*binding.Question
	everywhere, attached []volume.Key
	// needed are the drivers of attached that must be on a node first.
	needed []string
	// unlimited: no node limits the drivers of attached, and none of them must be
	// there, so that a node's CSINode says nothing about attaching.
	unlimited bool
}

// Ask makes of a pod's volumes the question, or tells what keeps it from every
// node.
func (b *Binder) Ask(v Volumes) (*Question, *volume.Refusal, error) {
	if v.Refusal != nil {
		return nil, v.Refusal, nil
	}
	asked, err := b.cache.Ask(v.Claims)
	if err != nil {
		return nil, nil, err
	}
	if len(asked.Immediate) > 0 {
		return nil, &volume.Refusal{Reason: volume.ReasonClaimUnbound, Detail: asked.Immediate[0]}, nil
	}
	q := &Question{Question: asked.Question, everywhere: v.everywhere, attached: v.Attached, needed: b.neededDrivers(v.Attached)}
	q.unlimited = len(q.needed) == 0 && b.nodes.Informed() && !b.cache.Limited(q.attached)
	return q, nil, nil
}

// neededDrivers are those that must be on a node before the pod is.
func (b *Binder) neededDrivers(attached []volume.Key) []string {
	var out []string
	for _, k := range attached {
		d := b.cache.Driver(k.Driver)
		if d != nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing && !slices.Contains(out, k.Driver) {
			out = append(out, k.Driver)
		}
	}
	return out
}

// claims looks up a pod's claims, each once, or says which one keeps the pod
// from every node.
func (b *Binder) claims(pod *corev1.Pod, refs []ClaimRef) ([]*corev1.PersistentVolumeClaim, *volume.Refusal, error) {
	out := make([]*corev1.PersistentVolumeClaim, 0, len(refs))
	for _, ref := range refs {
		pvc, err := b.cache.Claim(pod.Namespace, ref.Name)
		switch {
		case apierrors.IsNotFound(err):
			return out, refuseMissing(pod, ref), nil
		case err != nil:
			return nil, nil, fmt.Errorf("reading claim %s/%s: %w", pod.Namespace, ref.Name, err)
		}
		if r := refuseClaim(pod, pvc, ref); r != nil {
			return out, r, nil
		}
		// By name: the informer may have another object of it by now.
		if !slices.ContainsFunc(out, func(o *corev1.PersistentVolumeClaim) bool { return o.Name == pvc.Name }) {
			out = append(out, pvc)
		}
	}
	return out, nil, nil
}

func refuseMissing(pod *corev1.Pod, ref ClaimRef) *volume.Refusal {
	detail := fmt.Sprintf("%s/%s", pod.Namespace, ref.Name)
	if ref.Ephemeral {
		detail += ", waiting for the ephemeral volume controller to create it"
	}
	return &volume.Refusal{Reason: volume.ReasonClaimMissing, Detail: detail}
}

// refuseClaim says what is wrong with a claim that exists, in upstream's order.
func refuseClaim(pod *corev1.Pod, pvc *corev1.PersistentVolumeClaim, ref ClaimRef) *volume.Refusal {
	key := pvc.Namespace + "/" + pvc.Name
	switch {
	case pvc.Status.Phase == corev1.ClaimLost:
		return &volume.Refusal{Reason: volume.ReasonClaimLost, Detail: fmt.Sprintf("claim %s, persistentvolume %s", key, pvc.Spec.VolumeName)}
	case pvc.DeletionTimestamp != nil:
		return &volume.Refusal{Reason: volume.ReasonClaimDeleting, Detail: "claim " + key}
	case ref.Ephemeral && ephemeral.VolumeIsForPod(pod, pvc) != nil:
		return &volume.Refusal{Reason: volume.ReasonClaimNotOwned, Detail: "claim " + key + " exists and belongs to another object"}
	}
	return nil
}
