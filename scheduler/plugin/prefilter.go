package plugin

import (
	"context"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// resizeOnly: the pod is on a node already, and so are its volumes.
func (p *Plugin) resizeOnly(pod *corev1.Pod) bool {
	return p.resizes && resource.IsPodResizeDeferred(pod)
}

// PreFilter implements fwk.PreFilterPlugin. It never narrows the nodes: the
// framework would report those left out without a reason of ours.
func (p *Plugin) PreFilter(_ context.Context, cs fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if p.resizeOnly(pod) || !binder.Judged(pod) {
		cs.Write(stateKey, &state{none: true})
		return nil, fwk.NewStatus(fwk.Skip)
	}
	volumes, err := p.binder.Read(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	// Before the question, which is of one moment: what comes after it wakes.
	n := p.needOf(pod, volumes.Refs, volumes.Attached)
	p.wait(pod, n)
	question, refusal, err := p.binder.Ask(volumes)
	switch {
	case err != nil:
		return nil, fwk.AsStatus(err)
	case refusal != nil:
		return nil, statusOf([]volume.Refusal{*refusal})
	case question.Wary():
		// What was noted is shared by now.
		wary := *n
		wary.wary = true
		p.wait(pod, &wary)
	}
	if question, err = p.binder.Shun(question, pod, objects(nodes)); err != nil {
		return nil, fwk.AsStatus(err)
	}
	cs.Write(stateKey, &state{question: question, said: said{by: map[volume.Refusal][]string{}}})
	return nil, nil
}

func objects(infos []fwk.NodeInfo) iter.Seq[*corev1.Node] {
	return func(yield func(*corev1.Node) bool) {
		for _, info := range infos {
			if !yield(info.Node()) {
				return
			}
		}
	}
}

// PreFilterExtensions implements fwk.PreFilterPlugin: pods that come and go
// change only attach limits, which Filter counts from the NodeInfo it is given.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// wait notes what the pod waits for. A pod that is not in the informer is gone,
// and its deletion will not come again, or it is a simulation of a cluster
// autoscaler's: it would be kept for ever.
func (p *Plugin) wait(pod *corev1.Pod, n *need) {
	p.waiting.set(pod.UID, n)
	if current := p.cache.Pod(pod.Namespace, pod.Name); current == nil || current.UID != pod.UID {
		p.waiting.forget(pod.UID)
	}
}

// needOf is what could help the pod.
func (p *Plugin) needOf(pod *corev1.Pod, refs []binder.ClaimRef, wanted []volume.Key) *need {
	n := &need{pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
	for _, k := range wanted {
		include(&n.drivers, k.Driver)
	}
	for _, ref := range refs {
		include(&n.claims, pod.Namespace+"/"+ref.Name)
		pvc, err := p.cache.Claim(pod.Namespace, ref.Name)
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
