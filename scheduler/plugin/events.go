package plugin

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// EventsToRegister implements fwk.EnqueueExtensions: what may help a pod that
// this plugin refused. Deletions are here too, as they end holds.
//
// The queue hears of an event on a goroutine of its own, perhaps before the
// cache does. Each hint therefore brings the cache up to date first; otherwise
// a pod could be retried against the old state and then wait for the next event.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	on := func(r fwk.EventResource, a fwk.ActionType, hint fwk.QueueingHintFn) fwk.ClusterEventWithHint {
		return fwk.ClusterEventWithHint{
			Event: fwk.ClusterEvent{Resource: r, ActionType: a},
			QueueingHintFn: func(logger klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
				p.cache.Observe(oldObj)
				p.cache.Observe(newObj)
				return hint(logger, pod, oldObj, newObj)
			},
		}
	}
	return []fwk.ClusterEventWithHint{
		on(fwk.StorageClass, fwk.Add|fwk.Update, p.afterClass),
		on(fwk.PersistentVolumeClaim, fwk.Add|fwk.Update|fwk.Delete, p.afterClaim),
		on(fwk.PersistentVolume, fwk.Add|fwk.Update|fwk.Delete, p.afterVolume),
		on(fwk.Node, fwk.Add|fwk.UpdateNodeLabel, queue),
		on(fwk.CSINode, fwk.Add|fwk.Update, p.afterCSINode),
		on(fwk.CSIDriver, fwk.Add|fwk.Update|fwk.Delete, p.afterDriver),
		on(fwk.CSIStorageCapacity, fwk.Add|fwk.Update|fwk.Delete, p.afterCapacity),
		on(fwk.AssignedPod, fwk.Delete, p.afterPod),
	}, nil
}

func queue(klog.Logger, *v1.Pod, any, any) (fwk.QueueingHint, error) { return fwk.Queue, nil }

func hintIf(useful bool) (fwk.QueueingHint, error) {
	if useful {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// pending are the classes of the pod's claims that have no volume yet, and
// whether a claim of the pod is missing, which makes every class possible.
func (p *Plugin) pending(pod *v1.Pod) (classes []string, unknown bool) {
	for _, ref := range claimRefs(pod) {
		pvc, err := p.cache.Claim(pod.Namespace, ref.name)
		if err != nil {
			unknown = true
			continue
		}
		if !binding.IsBound(pvc) {
			classes = append(classes, binding.ClassName(pvc))
		}
	}
	return classes, unknown
}

// wantsFrom reports whether space or volumes of the class may help the pod.
func (p *Plugin) wantsFrom(pod *v1.Pod, class string) bool {
	classes, unknown := p.pending(pod)
	return unknown || slices.ContainsFunc(classes, func(c string) bool { return p.cache.SharePool(c, class) })
}

// names reports whether the pod uses the claim.
func names(pod *v1.Pod, namespace, name string) bool {
	return pod.Namespace == namespace &&
		slices.ContainsFunc(claimRefs(pod), func(r claimRef) bool { return r.name == name })
}

// afterClass: a new class, or one that allows other nodes.
func (p *Plugin) afterClass(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, after, err := util.As[*storagev1.StorageClass](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	classes, unknown := p.pending(pod)
	if !unknown && !slices.Contains(classes, after.Name) {
		return fwk.QueueSkip, nil
	}
	return hintIf(before == nil || !apiequality.Semantic.DeepEqual(before.AllowedTopologies, after.AllowedTopologies))
}

// afterClaim: the pod's own claim changed, or another one gave space back.
func (p *Plugin) afterClaim(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, after, err := util.As[*v1.PersistentVolumeClaim](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if after != nil && names(pod, after.Namespace, after.Name) {
		return fwk.Queue, nil
	}
	if before == nil || before.Annotations[volume.AnnSelectedNode] == "" {
		return fwk.QueueSkip, nil
	}
	given := after == nil || after.Annotations[volume.AnnSelectedNode] != before.Annotations[volume.AnnSelectedNode]
	return hintIf(given && p.wantsFrom(pod, binding.ClassName(before)))
}

// afterVolume: a volume of a wanted class is free, its hold ended, or it is the
// one that a claim of the pod names.
func (p *Plugin) afterVolume(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, after, err := util.As[*v1.PersistentVolume](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	pv := after
	if pv == nil {
		pv = before
	}
	if ref := pv.Spec.ClaimRef; ref != nil && names(pod, ref.Namespace, ref.Name) {
		return fwk.Queue, nil
	}
	for _, ref := range claimRefs(pod) {
		if pvc, err := p.cache.Claim(pod.Namespace, ref.name); err == nil && pvc.Spec.VolumeName == pv.Name {
			return fwk.Queue, nil
		}
	}
	return hintIf(p.wantsFrom(pod, pv.Spec.StorageClassName))
}

// afterCSINode: a driver appeared, or takes more volumes than before.
func (p *Plugin) afterCSINode(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, after, err := util.As[*storagev1.CSINode](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if before == nil {
		return fwk.Queue, nil
	}
	was, is := limitsOf(before), limitsOf(after)
	for _, d := range after.Spec.Drivers {
		if !registered(before, d.Name) {
			return fwk.Queue, nil
		}
		oldLimit, wasLimited := was[d.Name]
		if newLimit, isLimited := is[d.Name]; wasLimited && (!isLimited || newLimit > oldLimit) {
			return fwk.Queue, nil
		}
	}
	return hintIf(before.Annotations[volume.AnnMigratedPlugins] != after.Annotations[volume.AnnMigratedPlugins])
}

// afterDriver: capacity is no longer tracked, or the driver need not be there.
func (p *Plugin) afterDriver(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, after, err := util.As[*storagev1.CSIDriver](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if before == nil {
		return fwk.QueueSkip, nil
	}
	isSet := func(b *bool) bool { return b != nil && *b }
	loosened := after == nil ||
		isSet(before.Spec.StorageCapacity) && !isSet(after.Spec.StorageCapacity) ||
		isSet(before.Spec.PreventPodSchedulingIfMissing) && !isSet(after.Spec.PreventPodSchedulingIfMissing)
	if !loosened {
		return fwk.QueueSkip, nil
	}
	for _, ref := range claimRefs(pod) {
		if key, ok := p.cache.VolumeKey(pod.Namespace, ref.name); !ok || key.Driver == before.Name {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// afterCapacity: more is free, or the object has passed allocations that were
// held against it.
func (p *Plugin) afterCapacity(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	before, after, err := util.As[*storagev1.CSIStorageCapacity](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if after == nil {
		// A pool that loses an object may lose the one that lagged.
		return hintIf(p.wantsFrom(pod, before.StorageClassName))
	}
	better := before == nil ||
		grew(before.Capacity, after.Capacity) || grew(before.MaximumVolumeSize, after.MaximumVolumeSize) ||
		!apiequality.Semantic.DeepEqual(before.Annotations, after.Annotations) ||
		!apiequality.Semantic.DeepEqual(before.NodeTopology, after.NodeTopology) ||
		// Drivers that number nothing: any new version ends their holds.
		after.Annotations[volume.AnnotationAllocation] == ""
	return hintIf(better && p.wantsFrom(pod, after.StorageClassName))
}

func grew(before, after *resource.Quantity) bool {
	return after != nil && (before == nil || after.Cmp(*before) > 0)
}

// afterPod: a pod with volumes left a node, or never got there and its
// reservation was undone.
func (p *Plugin) afterPod(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	gone, _, err := util.As[*v1.Pod](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	return hintIf(gone != nil && len(claimRefs(gone)) > 0 && len(claimRefs(pod)) > 0)
}
