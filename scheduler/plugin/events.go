package plugin

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// hintFn answers whether an event may help a pod that needs this.
type hintFn func(n *need, pod *corev1.Pod, oldObj, newObj any) (bool, error)

// EventsToRegister implements fwk.EnqueueExtensions: what may help a pod that
// this plugin refused. Deletions are here too, as they end holds.
//
// The queue hears of an event on a goroutine of its own, perhaps before the
// cache does. Each hint therefore brings the cache up to date first; otherwise
// a pod could be retried against the old state and then wait for the next event.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	on := func(r fwk.EventResource, a fwk.ActionType, hint hintFn, narrow fwk.PreQueueingHintFn) fwk.ClusterEventWithHint {
		return fwk.ClusterEventWithHint{
			Event: fwk.ClusterEvent{Resource: r, ActionType: a}, PreQueueingHintFn: narrow,
			QueueingHintFn: func(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
				p.observe(oldObj, newObj)
				useful, err := hint(p.need(pod), pod, oldObj, newObj)
				if err != nil || useful {
					return fwk.Queue, err
				}
				return fwk.QueueSkip, nil
			},
		}
	}
	return []fwk.ClusterEventWithHint{
		on(fwk.StorageClass, fwk.Add|fwk.Update, p.afterClass, p.nearClass),
		on(fwk.PersistentVolumeClaim, fwk.Add|fwk.Update|fwk.Delete, p.afterClaim, p.nearClaim),
		on(fwk.PersistentVolume, fwk.Add|fwk.Update|fwk.Delete, p.afterVolume, p.nearVolume),
		on(fwk.Node, fwk.Add|fwk.UpdateNodeLabel|fwk.UpdateNodeTaint|fwk.Delete, p.afterNode, nil),
		on(fwk.CSINode, fwk.Add|fwk.Update, p.afterCSINode, nil),
		on(fwk.CSIDriver, fwk.Add|fwk.Update|fwk.Delete, p.afterDriver, p.nearDriver),
		on(fwk.CSIStorageCapacity, fwk.Add|fwk.Update|fwk.Delete, p.afterCapacity, p.nearCapacity),
		on(fwk.VolumeAttachment, fwk.Delete, p.afterAttachment, p.nearAttachment),
		on(fwk.AssignedPod, fwk.Delete, p.afterPod, nil),
	}, nil
}

// observe brings the cache up to date with an event, once for all the pods that
// the queue asks about: the stores only go forward, so that what was observed
// for the first pod is there for the others.
func (p *Plugin) observe(oldObj, newObj any) {
	event := [2]any{oldObj, newObj}
	if last := p.observed.Load(); last != nil && *last == event {
		return
	}
	p.cache.Observe(oldObj)
	p.cache.Observe(newObj)
	p.observed.Store(&event)
}

// need is what the pod waits for: as PreFilter noted it, or read now for a pod
// that this scheduler has not judged.
func (p *Plugin) need(pod *corev1.Pod) *need {
	if n := p.waiting.get(pod.UID); n != nil {
		return n
	}
	refs := binder.ClaimRefs(pod)
	var claims []*corev1.PersistentVolumeClaim
	for _, ref := range refs {
		if pvc, err := p.cache.Claim(pod.Namespace, ref.Name); err == nil {
			claims = append(claims, pvc)
		}
	}
	_, wanted := p.cache.Wanted(pod, claims)
	return p.needOf(pod, refs, wanted)
}

// wantsFrom reports whether space or volumes of the class may help.
func (p *Plugin) wantsFrom(n *need, class string) bool {
	return n.unknown || slices.ContainsFunc(n.classes, func(c string) bool { return p.cache.SharePool(c, class) })
}

// afterClass: a new class, or one that allows other nodes.
func (p *Plugin) afterClass(n *need, _ *corev1.Pod, oldObj, newObj any) (bool, error) {
	before, after, err := util.As[*storagev1.StorageClass](oldObj, newObj)
	if err != nil {
		return true, err
	}
	if !n.unknown && !slices.Contains(n.classes, after.Name) {
		return false, nil
	}
	return before == nil || !apiequality.Semantic.DeepEqual(before.AllowedTopologies, after.AllowedTopologies), nil
}

// afterClaim: the pod's own claim changed, or another one gave space back.
func (p *Plugin) afterClaim(n *need, _ *corev1.Pod, oldObj, newObj any) (bool, error) {
	before, after, err := util.As[*corev1.PersistentVolumeClaim](oldObj, newObj)
	if err != nil {
		return true, err
	}
	if after != nil && slices.Contains(n.claims, after.Namespace+"/"+after.Name) {
		return true, nil
	}
	return gaveBack(before, after) && p.wantsFrom(n, binding.ClassName(before)), nil
}

// gaveBack reports whether the claim's selected node is no longer the one it was.
func gaveBack(before, after *corev1.PersistentVolumeClaim) bool {
	if before == nil || before.Annotations[volume.AnnSelectedNode] == "" {
		return false
	}
	return after == nil || after.Annotations[volume.AnnSelectedNode] != before.Annotations[volume.AnnSelectedNode]
}

// afterVolume: a volume of a wanted class is free, its hold ended, or it is the
// one that a claim of the pod names.
func (p *Plugin) afterVolume(n *need, _ *corev1.Pod, oldObj, newObj any) (bool, error) {
	before, after, err := util.As[*corev1.PersistentVolume](oldObj, newObj)
	if err != nil {
		return true, err
	}
	pv := after
	if pv == nil {
		pv = before
	}
	if slices.Contains(n.volumes, pv.Name) || reservedFor(n, before) || reservedFor(n, after) {
		return true, nil
	}
	return (volumeMatters(before, after) || p.endsHold(before, after)) &&
		(p.wantsFrom(n, className(pv)) || p.wantsSpaceOf(n, before) || p.wantsSpaceOf(n, after)), nil
}

// wantsSpaceOf reports whether the space that the volume takes may help: its pool
// says so, and not its class, which a person may have written.
func (p *Plugin) wantsSpaceOf(n *need, pv *corev1.PersistentVolume) bool {
	return slices.ContainsFunc(n.classes, func(c string) bool { return p.servedBy(c, pv) })
}

func (p *Plugin) servedBy(class string, pv *corev1.PersistentVolume) bool {
	if pv == nil {
		return false
	}
	pool, _ := volume.NumberOf(pv.Annotations)
	return pool != "" && p.cache.ServedBy(class, pool)
}

func reservedFor(n *need, pv *corev1.PersistentVolume) bool {
	if pv == nil || pv.Spec.ClaimRef == nil {
		return false
	}
	return slices.Contains(n.claims, pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name)
}

// volumeMatters tells changes that may free a volume or end a hold from those
// that cannot. A new volume of another claim ends the hold that stood for it.
func volumeMatters(before, after *corev1.PersistentVolume) bool {
	switch {
	case before == nil:
		return true
	case after == nil:
		return true
	case before.Annotations[volume.AnnotationAllocation] != after.Annotations[volume.AnnotationAllocation]:
		return true
	case after.Spec.ClaimRef != nil || after.Status.Phase != corev1.VolumeAvailable || after.DeletionTimestamp != nil:
		return false
	}
	return before.Spec.ClaimRef != nil || before.Status.Phase != after.Status.Phase ||
		!apiequality.Semantic.DeepEqual(before.Labels, after.Labels) || !apiequality.Semantic.DeepEqual(before.Spec, after.Spec)
}

// endsHold: the volume is given to a claim that is selected for a node, by a person
// or by somebody in the place of a scheduler; nothing is held for the claim any more.
func (p *Plugin) endsHold(before, after *corev1.PersistentVolume) bool {
	if after == nil || after.Spec.ClaimRef == nil || after.Spec.ClaimRef.UID == "" {
		return false
	}
	ref := after.Spec.ClaimRef
	if before != nil && before.Spec.ClaimRef != nil && before.Spec.ClaimRef.UID == ref.UID {
		return false
	}
	pvc := p.cache.ClaimByKey(ref.Namespace + "/" + ref.Name)
	return pvc != nil && pvc.UID == ref.UID && pvc.Annotations[volume.AnnSelectedNode] != ""
}

// className: the beta annotation wins (component-helpers, GetPersistentVolumeClass).
func className(pv *corev1.PersistentVolume) string {
	if name, ok := pv.Annotations[volume.AnnBetaStorageClass]; ok {
		return name
	}
	return pv.Spec.StorageClassName
}

// afterNode: the node has room for the pod's volumes, and had none before, or
// lost a taint that stood for a missing driver; or space that is held on it is
// missed elsewhere no more.
func (p *Plugin) afterNode(n *need, pod *corev1.Pod, oldObj, newObj any) (bool, error) {
	before, after, err := util.As[*corev1.Node](oldObj, newObj)
	switch {
	case err != nil:
		return true, err
	case n.wary:
		// This may be the node that others were shunned for.
		return true, nil
	case after == nil:
		return false, nil
	}
	if before != nil && slices.ContainsFunc(n.drivers, func(d string) bool { return binder.HasStartupTaint(before, d) && !binder.HasStartupTaint(after, d) }) {
		return true, nil
	}
	volumes, err := p.binder.Read(pod)
	if err != nil {
		return true, err
	}
	question, refusal, err := p.binder.Ask(volumes)
	if err != nil || refusal != nil {
		// No node helps a pod whose claim is missing or broken.
		return err != nil, err
	}
	if before != nil && !maps.Equal(before.Labels, after.Labels) && p.cache.HoldsOn(after.Name) {
		// What is held moves with the node, and other nodes may have room.
		return true, nil
	}
	helps, err := p.binder.Helps(question, before, after)
	return helps || err != nil, err
}

// afterCSINode: a driver of the pod's appeared, or takes more volumes than
// before, or other in-tree plugins are migrated.
func (p *Plugin) afterCSINode(n *need, _ *corev1.Pod, oldObj, newObj any) (bool, error) {
	before, after, err := util.As[*storagev1.CSINode](oldObj, newObj)
	if err != nil {
		return true, err
	}
	if before == nil || n.unknown {
		return true, nil
	}
	for _, driver := range n.drivers {
		was, wasLimited, wasThere := cache.CountOf(before, driver)
		is, isLimited, isThere := cache.CountOf(after, driver)
		// No limit counts as 0, as upstream: until then one may be remembered.
		if isThere && (!wasThere || wasLimited && !isLimited || is > was) {
			return true, nil
		}
	}
	return before.Annotations[volume.AnnMigratedPlugins] != after.Annotations[volume.AnnMigratedPlugins], nil
}

// afterDriver: capacity is no longer tracked, or the driver need not be there.
func (p *Plugin) afterDriver(n *need, _ *corev1.Pod, oldObj, newObj any) (bool, error) {
	before, after, err := util.As[*storagev1.CSIDriver](oldObj, newObj)
	if err != nil {
		return true, err
	}
	if before == nil {
		return false, nil
	}
	needed := func(d *storagev1.CSIDriver) bool {
		return d != nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing
	}
	loosened := trackedBy(before) && !trackedBy(after) || needed(before) && !needed(after)
	return loosened && (n.unknown || slices.Contains(n.drivers, before.Name)), nil
}

// afterCapacity: more is free, or the object has passed allocations that were
// held against it, and it publishes enough for at least one claim.
func (p *Plugin) afterCapacity(n *need, _ *corev1.Pod, oldObj, newObj any) (bool, error) {
	before, after, err := util.As[*storagev1.CSIStorageCapacity](oldObj, newObj)
	if err != nil {
		return true, err
	}
	if after == nil {
		// A pool that loses an object may lose the one that lagged, or the holds of
		// its class. What shared the pool with it cannot be told any more.
		sc := p.cache.Class(before.StorageClassName)
		return n.unknown || sc == nil || slices.Contains(n.drivers, sc.Provisioner), nil
	}
	if !n.unknown && tooSmall(after, n.smallest) {
		return false, nil
	}
	_, allocation := volume.NumberOf(after.Annotations)
	better := before == nil || n.wary ||
		grew(before.Capacity, after.Capacity) || grew(before.MaximumVolumeSize, after.MaximumVolumeSize) || unbounded(before, after) ||
		!apiequality.Semantic.DeepEqual(before.Annotations, after.Annotations) ||
		!apiequality.Semantic.DeepEqual(before.NodeTopology, after.NodeTopology) ||
		// Drivers that number nothing: any new version ends their holds.
		allocation == volume.Unnumbered
	return better && p.wantsFrom(n, after.StorageClassName), nil
}

// tooSmall: not even what the object publishes would do. Classes that share a
// pool publish it each for itself, so an object of the pod's own class grows too.
func tooSmall(o *storagev1.CSIStorageCapacity, bytes int64) bool {
	return o.Capacity != nil && volume.Bytes(*o.Capacity) < bytes
}

// unbounded: a figure that bounded volumes is not published any more, and another
// one still says that the object offers any.
func unbounded(before, after *storagev1.CSIStorageCapacity) bool {
	if after.Capacity == nil && after.MaximumVolumeSize == nil {
		return false
	}
	return before.Capacity != nil && after.Capacity == nil || before.MaximumVolumeSize != nil && after.MaximumVolumeSize == nil
}

func grew(before, after *resource.Quantity) bool {
	return after != nil && (before == nil || after.Cmp(*before) > 0)
}

// afterAttachment: a volume left a node, and another of its driver can come.
func (p *Plugin) afterAttachment(n *need, _ *corev1.Pod, oldObj, newObj any) (bool, error) {
	gone, _, err := util.As[*storagev1.VolumeAttachment](oldObj, newObj)
	if err != nil {
		return true, err
	}
	return n.unknown || gone != nil && slices.Contains(n.drivers, gone.Spec.Attacher), nil
}

// afterPod: a pod with volumes of the same driver left a node, or never got
// there and its reservation was undone.
func (p *Plugin) afterPod(n *need, _ *corev1.Pod, oldObj, newObj any) (bool, error) {
	gone, _, err := util.As[*corev1.Pod](oldObj, newObj)
	if err != nil {
		return true, err
	}
	if gone == nil {
		return false, nil
	}
	had := p.need(gone)
	if len(had.claims)+len(had.drivers) == 0 {
		return false, nil
	}
	shares := func(a, b []string) bool {
		return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
	}
	return n.unknown || had.unknown || shares(n.drivers, had.drivers) || shares(n.claims, had.claims) ||
		slices.ContainsFunc(had.classes, func(c string) bool { return p.wantsFrom(n, c) }), nil
}
