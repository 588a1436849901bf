package oracle

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/volume"
)

// disk is a volume as its driver knows it.
type disk struct{ driver, handle string }

func driverOfVolume(pv *corev1.PersistentVolume) (driver, handle string) {
	switch {
	case pv.Spec.CSI != nil:
		return pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle
	case pv.Spec.AWSElasticBlockStore != nil:
		return ebsDriver, pv.Spec.AWSElasticBlockStore.VolumeID
	case pv.Spec.GCEPersistentDisk != nil:
		moved, err := (&model{world: &world{}}).translated(pv)
		if err == nil {
			return pdDriver, moved
		}
	}
	return "", ""
}

func driverOfClass(sc *storagev1.StorageClass) string {
	switch sc.Provisioner {
	case ebsPlugin:
		return ebsDriver
	case pdPlugin:
		return pdDriver
	}
	return sc.Provisioner
}

// disksOf are the disks of a pod. foreign: it has an ephemeral claim of another's.
func (m *model) disksOf(p *corev1.Pod, csi bool) (out []disk, foreign bool) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.AWSElasticBlockStore != nil && csi {
			out = append(out, disk{ebsDriver, v.AWSElasticBlockStore.VolumeID})
		}
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = p.Name + "-" + v.Name
		}
		c := m.claim(name)
		if c == nil {
			continue
		}
		if v.Ephemeral != nil && ephemeral.VolumeIsForPod(p, c) != nil {
			foreign = true
			continue
		}
		if d, moved := m.diskOf(c); d.driver != "" && (csi || !moved) {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b disk) int { return strings.Compare(a.driver+a.handle, b.driver+b.handle) })
	return slices.Compact(out), foreign
}

func (m *model) diskOf(c *corev1.PersistentVolumeClaim) (d disk, moved bool) {
	if pv := m.volume(c.Spec.VolumeName); pv != nil {
		driver, handle := driverOfVolume(pv)
		return disk{driver, handle}, pv.Spec.CSI == nil
	}
	sc := m.class(className(c))
	if sc == nil {
		return disk{}, false
	}
	return disk{driverOfClass(sc), "claim " + c.Name}, sc.Provisioner == ebsPlugin
}

// limitOf is a driver's limit on a node.
func (m *model) limitOf(node, driver string) (int, bool) {
	is, known := publishedLimit(csiNodeOf(m.csiNodes, node), driver)
	if is > 0 || !m.has[plugin.DifferenceLimitGrace] {
		return is, known
	}
	if was, _ := publishedLimit(csiNodeOf(m.limits, node), driver); was > 0 {
		return was, true
	}
	return is, known
}

func publishedLimit(n *storagev1.CSINode, driver string) (int, bool) {
	if n == nil {
		return 0, false
	}
	for _, d := range n.Spec.Drivers {
		if d.Name == driver && d.Allocatable != nil && d.Allocatable.Count != nil {
			return int(*d.Allocatable.Count), true
		}
	}
	return 0, false
}

// attach is what attaching says of a node; dry: without the evicted pod.
func (m *model) attach(n *corev1.Node, dry bool) refusal {
	csi := csiNodeOf(m.csiNodes, n.Name)
	wanted, _ := m.disksOf(m.pod, csi != nil)
	if len(wanted) == 0 {
		return refusal{}
	}
	for _, d := range wanted {
		if m.missing(n, csi, d.driver) {
			if m.has[plugin.DifferenceDriverMissing] {
				return refusal{final, volume.ReasonDriverMissing.Sentence()}
			}
			return refusal{"Unschedulable", volume.ReasonDriverMissing.Sentence()}
		}
	}
	if !m.anyLimit(n.Name) {
		return refusal{}
	}
	used, gone, broken := m.inUse(n, csi, dry)
	if broken {
		return refusal{code: "Error"}
	}
	attached := m.attached(n.Name)
	if m.has[plugin.DifferencePreemption] {
		attached = slices.DeleteFunc(attached, func(d disk) bool { return slices.Contains(gone, d) })
	}
	wanted = slices.DeleteFunc(wanted, func(d disk) bool {
		return slices.Contains(used, d) || m.has[plugin.DifferenceAttachedOwn] && slices.Contains(attached, d)
	})
	for _, d := range wanted {
		limit, limited := m.limitOf(n.Name, d.driver)
		if limited && count(d.driver, used, attached)+count(d.driver, wanted) > limit {
			return refusal{"Unschedulable", volume.ReasonAttachLimit.Sentence()}
		}
	}
	return refusal{}
}

// inUse are the disks of the node's pods, and those of one that a dry run leaves
// out; broken is upstream's error for a claim that is not its pod's.
func (m *model) inUse(n *corev1.Node, csi *storagev1.CSINode, dry bool) (used, gone []disk, broken bool) {
	for _, p := range m.running {
		if p.Spec.NodeName != n.Name {
			continue
		}
		disks, foreign := m.disksOf(p, csi != nil || m.has[plugin.DifferenceLimitGrace])
		switch {
		case dry && p.Name == m.evicted:
			gone = append(gone, disks...)
			continue
		case foreign && !m.has[plugin.DifferenceForeignEphemeral]:
			return nil, nil, true
		}
		used = append(used, disks...)
	}
	return used, gone, false
}

func (m *model) anyLimit(node string) bool {
	for _, d := range []string{trackedDriver, otherDriver, ebsDriver, pdDriver} {
		if _, limited := m.limitOf(node, d); limited {
			return true
		}
	}
	return false
}

// count is how many different disks of the driver there are.
func count(driver string, lists ...[]disk) int {
	seen := map[disk]bool{}
	for _, l := range lists {
		for _, d := range l {
			if d.driver == driver {
				seen[d] = true
			}
		}
	}
	return len(seen)
}

func (m *model) missing(n *corev1.Node, csi *storagev1.CSINode, driver string) bool {
	if csi != nil && slices.ContainsFunc(csi.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver }) {
		return false
	}
	if d := m.driver(driver); d != nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing {
		return true
	}
	return m.has[plugin.DifferenceDriverMissing] && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, driver+"/") })
}

// attached are the disks of the node's VolumeAttachments.
func (m *model) attached(node string) []disk {
	var out []disk
	for _, va := range m.attachments {
		if va.Spec.NodeName != node {
			continue
		}
		d, csi := disk{driver: va.Spec.Attacher}, false
		if s := va.Spec.Source; s.PersistentVolumeName != nil {
			d.handle = "volume " + *s.PersistentVolumeName
			if pv := m.volume(*s.PersistentVolumeName); pv != nil {
				if _, handle := driverOfVolume(pv); handle != "" {
					d.handle = handle
				}
				csi = pv.Spec.CSI != nil
			}
		} else {
			d.handle = s.InlineVolumeSpec.CSI.VolumeHandle
		}
		if csi || m.has[plugin.DifferenceAttachedAny] {
			out = append(out, d)
		}
	}
	return out
}
