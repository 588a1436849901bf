package plugin

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// claimRef is a pod's reference to a claim.
type claimRef struct {
	name string
	// ephemeral: the claim is made for the pod and must be owned by it.
	ephemeral bool
}

// claimRefs lists a pod's claims. Other volumes are nobody's business here.
func claimRefs(pod *corev1.Pod) []claimRef {
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

// resizeOnly: the pod is on a node already, and so are its volumes.
func (p *Plugin) resizeOnly(pod *corev1.Pod) bool {
	return p.resizes && resource.IsPodResizeDeferred(pod)
}

// PreFilter implements fwk.PreFilterPlugin. It never narrows the nodes: the
// framework would report those left out without a reason of ours.
func (p *Plugin) PreFilter(_ context.Context, cs fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	refs := claimRefs(pod)
	if p.resizeOnly(pod) || len(refs) == 0 && !cache.HasInline(pod) {
		cs.Write(stateKey, &state{none: true})
		return nil, fwk.NewStatus(fwk.Skip)
	}
	claims, refusal, err := p.claims(pod, refs)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	wanted, wantedCSI := p.cache.Wanted(pod, claims)
	n := p.needOf(pod, refs, wantedCSI)
	p.wait(pod, n)
	if refusal != nil {
		return nil, statusOf([]volume.Refusal{*refusal})
	}
	question, err := p.cache.Ask(claims)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if question.Wary() {
		// What was noted is shared by now.
		wary := *n
		wary.wary = true
		p.wait(pod, &wary)
	}
	if len(question.Immediate) > 0 {
		return nil, statusOf([]volume.Refusal{{
			Reason: volume.ReasonClaimUnbound, Detail: question.Immediate[0],
		}})
	}
	s := &state{question: question.Question, wanted: wanted, wantedCSI: wantedCSI, needed: p.neededDrivers(wantedCSI), said: said{by: map[volume.Refusal][]string{}}}
	s.unlimited = len(s.needed) == 0 && p.sharesCSINodes() && !p.cache.Limited(wantedCSI)
	if err := p.shun(s, pod, nodes); err != nil {
		return nil, fwk.AsStatus(err)
	}
	cs.Write(stateKey, s)
	return nil, nil
}

// PreFilterExtensions implements fwk.PreFilterPlugin: pods that come and go
// change only attach limits, which Filter counts from the NodeInfo it is given.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// shun makes the nodes that refused the pod's claims lately the last choice: as
// long as any other node that would take the pod has room for its volumes, they
// are refused here.
func (p *Plugin) shun(s *state, pod *corev1.Pod, nodes []fwk.NodeInfo) error {
	if !s.question.Wary() {
		return nil
	}
	shunning := s.question.Shun()
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	j := p.judges.Get().(*judge)
	defer p.judges.Put(j)
	for _, info := range nodes {
		if !takes(info.Node(), pod, required) {
			continue
		}
		if _, err := p.meet(&j.node, s, shunning, info.Node()); err != nil {
			return err
		}
		if j.Find(shunning, &j.node).OK() {
			s.question = shunning
			return nil
		}
	}
	return nil
}

// takes reports whether the node is one for the pod, as far as its labels and
// taints tell: room where the pod may not go is no reason to shun another node.
func takes(node *corev1.Node, pod *corev1.Pod, required nodeaffinity.RequiredNodeAffinity) bool {
	if node == nil || node.Spec.Unschedulable {
		return false
	}
	if fits, err := required.Match(node); err != nil || !fits {
		return false
	}
	_, untolerated := corehelpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, true)
	return !untolerated
}

// wait notes what the pod waits for. A pod that is not in the informer is gone,
// and its deletion will not come again, or it is a simulation of a cluster
// autoscaler's: it would be kept for ever.
func (p *Plugin) wait(pod *corev1.Pod, n *need) {
	p.waiting.set(pod.UID, n)
	if current := p.cache.Pod(pod.Namespace, pod.Name); current == nil || current.UID != pod.UID {
		p.waiting.forget(pod.UID)
	}
}

// sharesCSINodes reports whether the handle's CSINodes are the informer's. A
// cluster autoscaler's are not.
func (p *Plugin) sharesCSINodes() bool {
	_, ok := p.handle.SharedCSIManager().(*nodevolumelimits.DefaultCSIManager)
	return ok
}

// neededDrivers are those that must be on a node before the pod is.
func (p *Plugin) neededDrivers(wanted []volume.Key) []string {
	var out []string
	for _, k := range wanted {
		d := p.cache.Driver(k.Driver)
		if d != nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing && !slices.Contains(out, k.Driver) {
			out = append(out, k.Driver)
		}
	}
	return out
}

// claims looks up a pod's claims, each once, or says which one keeps the pod
// from every node.
func (p *Plugin) claims(pod *corev1.Pod, refs []claimRef) ([]*corev1.PersistentVolumeClaim, *volume.Refusal, error) {
	out := make([]*corev1.PersistentVolumeClaim, 0, len(refs))
	for _, ref := range refs {
		pvc, err := p.cache.Claim(pod.Namespace, ref.name)
		switch {
		case apierrors.IsNotFound(err):
			return out, refuseMissing(pod, ref), nil
		case err != nil:
			return nil, nil, fmt.Errorf("reading claim %s/%s: %w", pod.Namespace, ref.name, err)
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

func refuseMissing(pod *corev1.Pod, ref claimRef) *volume.Refusal {
	detail := fmt.Sprintf("%s/%s", pod.Namespace, ref.name)
	if ref.ephemeral {
		detail += ", waiting for the ephemeral volume controller to create it"
	}
	return &volume.Refusal{Reason: volume.ReasonClaimMissing, Detail: detail}
}

// refuseClaim says what is wrong with a claim that exists, in upstream's order.
func refuseClaim(pod *corev1.Pod, pvc *corev1.PersistentVolumeClaim, ref claimRef) *volume.Refusal {
	key := pvc.Namespace + "/" + pvc.Name
	switch {
	case pvc.Status.Phase == corev1.ClaimLost:
		return &volume.Refusal{Reason: volume.ReasonClaimLost, Detail: fmt.Sprintf("claim %s, persistentvolume %s", key, pvc.Spec.VolumeName)}
	case pvc.DeletionTimestamp != nil:
		return &volume.Refusal{Reason: volume.ReasonClaimDeleting, Detail: "claim " + key}
	case ref.ephemeral && ephemeral.VolumeIsForPod(pod, pvc) != nil:
		return &volume.Refusal{Reason: volume.ReasonClaimNotOwned, Detail: "claim " + key + " exists and belongs to another object"}
	}
	return nil
}

// needOf is what could help the pod.
func (p *Plugin) needOf(pod *corev1.Pod, refs []claimRef, wanted []volume.Key) *need {
	n := &need{pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
	for _, k := range wanted {
		include(&n.drivers, k.Driver)
	}
	for _, ref := range refs {
		include(&n.claims, pod.Namespace+"/"+ref.name)
		pvc, err := p.cache.Claim(pod.Namespace, ref.name)
		if err != nil {
			n.unknown = true
			continue
		}
		if pvc.Spec.VolumeName != "" {
			include(&n.volumes, pvc.Spec.VolumeName)
		}
		if binding.IsBound(pvc) {
			continue
		}
		if origin, ok := cache.ClaimSource(pvc); ok {
			include(&n.claims, origin)
		}
		class := binding.ClassName(pvc)
		if len(n.classes) == 0 || request(pvc) < n.smallest {
			n.smallest = request(pvc)
		}
		include(&n.classes, class)
		if sc := p.cache.Class(class); sc != nil {
			include(&n.drivers, sc.Provisioner)
		}
	}
	return n
}

// request is what a claim asks for, in bytes.
func request(pvc *corev1.PersistentVolumeClaim) int64 {
	return volume.Bytes(*pvc.Spec.Resources.Requests.Storage())
}

func include(list *[]string, s string) {
	if !slices.Contains(*list, s) {
		*list = append(*list, s)
	}
}

// trackedBy reports whether a CSIDriver publishes capacity.
func trackedBy(d *storagev1.CSIDriver) bool {
	return d != nil && d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity
}
