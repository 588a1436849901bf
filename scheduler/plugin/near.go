package plugin

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-storage/berth/scheduler/binding"
)

// Where the gate SchedulerPreQueueingHints is on, the queue asks once an event
// which pods its hint is worth asking for, and asks it for no other. The index
// of what pods wait for answers that.

// nearest lists the pods that wait for any of the keys.
func (p *Plugin) nearest(keys ...string) fwk.PreQueueingHintResult {
	return fwk.PreQueueingHintResult{Pods: p.waiting.of(keys...)}
}

// everybody is for an event whose objects are not what they should be.
func everybody(err error) (fwk.PreQueueingHintResult, error) {
	return fwk.PreQueueingHintResult{AllPods: true}, err
}

// sharing are the index keys of the waited-for classes that have volumes in one
// pool with this one.
func (p *Plugin) sharing(class string) []string {
	var out []string
	for _, c := range p.waiting.classes() {
		if p.cache.SharePool(c, class) {
			out = append(out, classIndex(c))
		}
	}
	return out
}

func (p *Plugin) nearClass(_ klog.Logger, oldObj, newObj any) (fwk.PreQueueingHintResult, error) {
	_, after, err := util.As[*storagev1.StorageClass](oldObj, newObj)
	if err != nil || after == nil {
		return everybody(err)
	}
	return p.nearest(classIndex(after.Name)), nil
}

func (p *Plugin) nearClaim(_ klog.Logger, oldObj, newObj any) (fwk.PreQueueingHintResult, error) {
	before, after, err := util.As[*corev1.PersistentVolumeClaim](oldObj, newObj)
	if err != nil {
		return everybody(err)
	}
	var keys []string
	if after != nil {
		keys = append(keys, claimIndex(after.Namespace+"/"+after.Name))
	}
	if gaveBack(before, after) {
		keys = append(keys, p.sharing(binding.ClassName(before))...)
	}
	return p.nearest(keys...), nil
}

func (p *Plugin) nearVolume(_ klog.Logger, oldObj, newObj any) (fwk.PreQueueingHintResult, error) {
	before, after, err := util.As[*corev1.PersistentVolume](oldObj, newObj)
	if err != nil {
		return everybody(err)
	}
	var keys []string
	for _, pv := range []*corev1.PersistentVolume{before, after} {
		if pv == nil {
			continue
		}
		keys = append(keys, volumeIndex(pv.Name))
		if ref := pv.Spec.ClaimRef; ref != nil {
			keys = append(keys, claimIndex(ref.Namespace+"/"+ref.Name))
		}
		if volumeMatters(before, after) || p.endsHold(before, after) {
			keys = append(keys, p.sharing(className(pv))...)
			for _, class := range p.waiting.classes() {
				if p.servedBy(class, pv) {
					keys = append(keys, classIndex(class))
				}
			}
		}
	}
	return p.nearest(keys...), nil
}

func (p *Plugin) nearDriver(_ klog.Logger, oldObj, newObj any) (fwk.PreQueueingHintResult, error) {
	before, after, err := util.As[*storagev1.CSIDriver](oldObj, newObj)
	if err != nil {
		return everybody(err)
	}
	if before == nil {
		before = after
	}
	return p.nearest(driverIndex(before.Name)), nil
}

func (p *Plugin) nearCapacity(_ klog.Logger, oldObj, newObj any) (fwk.PreQueueingHintResult, error) {
	before, after, err := util.As[*storagev1.CSIStorageCapacity](oldObj, newObj)
	if err != nil {
		return everybody(err)
	}
	if after == nil {
		sc := p.cache.Class(before.StorageClassName)
		if sc == nil {
			return everybody(nil)
		}
		return p.nearest(driverIndex(sc.Provisioner)), nil
	}
	// The cache may not have the object yet, and so not know what shares its pool.
	p.cache.Observe(after)
	return p.nearest(p.sharing(after.StorageClassName)...), nil
}

func (p *Plugin) nearAttachment(_ klog.Logger, oldObj, newObj any) (fwk.PreQueueingHintResult, error) {
	gone, _, err := util.As[*storagev1.VolumeAttachment](oldObj, newObj)
	if err != nil || gone == nil {
		return everybody(err)
	}
	return p.nearest(driverIndex(gone.Spec.Attacher)), nil
}
