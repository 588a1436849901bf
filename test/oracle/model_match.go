package oracle

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/volume"
)

// reaches evaluates a node affinity word by word.
func (m *model) reaches(a *corev1.VolumeNodeAffinity, n *corev1.Node) bool {
	if a == nil || a.Required == nil {
		return true
	}
	return slices.ContainsFunc(a.Required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false
		}
		for _, r := range t.MatchExpressions {
			if !holds(r, n.Labels) {
				return false
			}
		}
		for _, r := range t.MatchFields {
			if m.has[plugin.DifferenceMatchFields] && !holds(r, map[string]string{metav1.ObjectNameField: n.Name}) {
				return false
			}
		}
		return true
	})
}

func holds(r corev1.NodeSelectorRequirement, of map[string]string) bool {
	v, there := of[r.Key]
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return there && slices.Contains(r.Values, v)
	case corev1.NodeSelectorOpNotIn:
		return !there || !slices.Contains(r.Values, v)
	case corev1.NodeSelectorOpExists:
		return there
	case corev1.NodeSelectorOpDoesNotExist:
		return !there
	}
	is, err := strconv.Atoi(v)
	than, errThan := strconv.Atoi(r.Values[0])
	if !there || err != nil || errThan != nil {
		return false
	}
	return r.Operator == corev1.NodeSelectorOpGt && is > than || r.Operator == corev1.NodeSelectorOpLt && is < than
}

// checkBound is what the bound claims say of a node.
func (m *model) checkBound(n *corev1.Node) []refusal {
	for _, r := range refsOf(m.pod) {
		c := m.claim(r.name)
		if !isBound(c) {
			continue
		}
		pv := m.volume(c.Spec.VolumeName)
		if pv == nil {
			return []refusal{{final, volume.ReasonVolumeMissing.Sentence()}}
		}
		affinity, err := m.affinityOn(pv, n)
		if err != nil {
			return []refusal{{code: "Error"}}
		}
		if !m.reaches(affinity, n) {
			return []refusal{{final, volume.ReasonNodeAffinity.Sentence()}}
		}
	}
	return nil
}

// affinityOn is the volume's affinity as the node handles it.
func (m *model) affinityOn(pv *corev1.PersistentVolume, n *corev1.Node) (*corev1.VolumeNodeAffinity, error) {
	plugins := ""
	if csi := csiNodeOf(m.csiNodes, n.Name); csi != nil {
		plugins = csi.Annotations[volume.AnnMigratedPlugins]
	}
	here := map[string]bool{"": false, ebsPlugin: pv.Spec.AWSElasticBlockStore != nil, pdPlugin: pv.Spec.GCEPersistentDisk != nil, ebsPlugin + "," + pdPlugin: pv.Spec.AWSElasticBlockStore != nil || pv.Spec.GCEPersistentDisk != nil}
	if !here[plugins] {
		return pv.Spec.NodeAffinity, nil
	}
	moved, err := csitranslation.New().TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return nil, err
	}
	return moved.Spec.NodeAffinity, nil
}

// reservedBy is the volume that waits for the claim, if it could serve it.
func (m *model) reservedBy(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	for _, pv := range m.volumes {
		ref := m.claimRef(pv)
		if ref != nil && ref.Name == c.Name && (ref.UID == "" || ref.UID == c.UID) && m.alike(c, pv) && pv.DeletionTimestamp == nil {
			return pv
		}
	}
	return nil
}

func (m *model) alike(c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) bool {
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	block := func(mode *corev1.PersistentVolumeMode) bool {
		return mode != nil && *mode == corev1.PersistentVolumeBlock
	}
	attributes := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	return pv.Spec.StorageClassName == className(c) && capacity.Value() >= bytesOf(c) && block(pv.Spec.VolumeMode) == block(c.Spec.VolumeMode) &&
		attributes(pv.Spec.VolumeAttributesClassName) == attributes(c.Spec.VolumeAttributesClassName)
}

// free are the volumes that the claim could take on the node.
func (m *model) free(c *corev1.PersistentVolumeClaim, n *corev1.Node) []*corev1.PersistentVolume {
	var out []*corev1.PersistentVolume
	for _, pv := range m.volumes {
		if m.claimRef(pv) != nil || pv.DeletionTimestamp != nil || pv.Status.Phase != corev1.VolumeAvailable || !m.alike(c, pv) || !m.reaches(pv.Spec.NodeAffinity, n) {
			continue
		}
		if c.Spec.Selector != nil && !labels.SelectorFromSet(c.Spec.Selector.MatchLabels).Matches(labels.Set(pv.Labels)) {
			continue
		}
		if slices.ContainsFunc(c.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool { return !slices.Contains(pv.Spec.AccessModes, mode) }) {
			continue
		}
		out = append(out, pv)
	}
	return out
}

// selectedNode is where a claim is being provisioned, as far as the side sees it.
func (m *model) selectedNode(c *corev1.PersistentVolumeClaim) string {
	switch n, there := c.Annotations[volume.AnnSelectedNode]; {
	case n != "":
		return n
	case there && !m.has[plugin.DifferenceSelectedNowhere]:
		return "a node of no name"
	}
	for _, o := range m.others {
		if o.claim == c.Name && o.volume == "" && (m.has[plugin.DifferenceReserved] || !o.touched) {
			return o.node
		}
	}
	return ""
}

// claimRef is whom a volume is for, as far as the side sees it.
func (m *model) claimRef(pv *corev1.PersistentVolume) *corev1.ObjectReference {
	for _, o := range m.others {
		if o.volume == pv.Name && (m.has[plugin.DifferenceReserved] || !o.touched) && (m.has[plugin.DifferenceReserveAgain] || !o.again) {
			return &corev1.ObjectReference{Name: o.claim, UID: m.claim(o.claim).UID}
		}
	}
	return pv.Spec.ClaimRef
}

// translated is the handle of an in-tree volume.
func (m *model) translated(pv *corev1.PersistentVolume) (string, error) {
	moved, err := csitranslation.New().TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return "", err
	}
	return moved.Spec.CSI.VolumeHandle, nil
}
