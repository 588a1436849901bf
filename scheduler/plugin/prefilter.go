package plugin

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/ephemeral"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// claimRef is a pod's reference to a claim.
type claimRef struct {
	name string
	// ephemeral: the claim is made for the pod and must be owned by it.
	ephemeral bool
}

// claimRefs lists a pod's claims. Other volumes are nobody's business here.
func claimRefs(pod *v1.Pod) []claimRef {
	var out []claimRef
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		switch {
		case vol.PersistentVolumeClaim != nil:
			out = append(out, claimRef{name: vol.PersistentVolumeClaim.ClaimName})
		case vol.Ephemeral != nil:
			out = append(out, claimRef{name: ephemeral.VolumeClaimName(pod, vol), ephemeral: true})
		}
	}
	return out
}

// PreFilter implements fwk.PreFilterPlugin. It never narrows the nodes: the
// framework would report those left out without a reason of ours.
func (p *Plugin) PreFilter(_ context.Context, cs fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	refs := claimRefs(pod)
	if len(refs) == 0 {
		cs.Write(stateKey, &state{none: true})
		return nil, fwk.NewStatus(fwk.Skip)
	}
	claims, refusal, err := p.claims(pod, refs)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if refusal != nil {
		return nil, statusOf([]volume.Refusal{*refusal})
	}
	question, err := p.cache.Ask(claims)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if len(question.Immediate) > 0 {
		return nil, statusOf([]volume.Refusal{{
			Reason: volume.ReasonClaimUnbound, Detail: question.Immediate[0],
		}})
	}
	s := &state{question: question, wanted: map[volume.Key]struct{}{}, verdicts: map[string]binding.Verdict{}}
	for _, c := range claims {
		if key, ok := p.cache.VolumeKey(c.Namespace, c.Name); ok {
			s.wanted[key] = struct{}{}
		}
	}
	cs.Write(stateKey, s)
	return nil, nil
}

// PreFilterExtensions implements fwk.PreFilterPlugin: pods that come and go
// change only attach limits, which Filter counts from the NodeInfo it is given.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// claims looks up a pod's claims, each once, or says which one keeps the pod
// from every node.
func (p *Plugin) claims(pod *v1.Pod, refs []claimRef) ([]*v1.PersistentVolumeClaim, *volume.Refusal, error) {
	out := make([]*v1.PersistentVolumeClaim, 0, len(refs))
	seen := map[string]struct{}{}
	for _, ref := range refs {
		pvc, err := p.cache.Claim(pod.Namespace, ref.name)
		switch {
		case apierrors.IsNotFound(err):
			return nil, refuseMissing(pod, ref), nil
		case err != nil:
			return nil, nil, fmt.Errorf("reading claim %s/%s: %w", pod.Namespace, ref.name, err)
		}
		if r := refuseClaim(pod, pvc, ref); r != nil {
			return nil, r, nil
		}
		if _, twice := seen[ref.name]; !twice {
			seen[ref.name] = struct{}{}
			out = append(out, pvc)
		}
	}
	return out, nil, nil
}

func refuseMissing(pod *v1.Pod, ref claimRef) *volume.Refusal {
	detail := fmt.Sprintf("%s/%s", pod.Namespace, ref.name)
	if ref.ephemeral {
		detail += ", waiting for the ephemeral volume controller to create it"
	}
	return &volume.Refusal{Reason: volume.ReasonClaimMissing, Detail: detail}
}

// refuseClaim says what is wrong with a claim that exists, in upstream's order.
func refuseClaim(pod *v1.Pod, pvc *v1.PersistentVolumeClaim, ref claimRef) *volume.Refusal {
	key := pvc.Namespace + "/" + pvc.Name
	switch {
	case pvc.Status.Phase == v1.ClaimLost:
		return &volume.Refusal{Reason: volume.ReasonClaimLost, Detail: fmt.Sprintf("claim %s, persistentvolume %s", key, pvc.Spec.VolumeName)}
	case pvc.DeletionTimestamp != nil:
		return &volume.Refusal{Reason: volume.ReasonClaimDeleting, Detail: "claim " + key}
	case ref.ephemeral && ephemeral.VolumeIsForPod(pod, pvc) != nil:
		return &volume.Refusal{Reason: volume.ReasonClaimNotOwned, Detail: "claim " + key + " exists and belongs to another object"}
	}
	return nil
}
