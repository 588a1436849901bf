package cache

import (
	corev1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
	csiplugins "k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/volume"
)

// migration is an in-tree volume as the CSI driver sees it that took it over.
type migration struct {
	plugin   string
	key      volume.Key
	affinity *corev1.VolumeNodeAffinity
	err      error
}

// migrates lists the plugins whose migration is on everywhere
// (upstream: volumebinding and nodevolumelimits, isCSIMigrationOn).
func migrates(plugin string) bool {
	switch plugin {
	case csiplugins.AWSEBSInTreePluginName, csiplugins.GCEPDInTreePluginName, csiplugins.AzureDiskInTreePluginName,
		csiplugins.CinderInTreePluginName, csiplugins.PortworxVolumePluginName:
		return true
	}
	return false
}

// translate is nil for a volume that no driver took over. The library logs what
// it drops; that is nobody's concern here, so it gets no logger.
func translate(pv *corev1.PersistentVolume) *migration {
	translator := csitranslation.New()
	if !translator.IsPVMigratable(pv) {
		return nil
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil || !migrates(plugin) {
		return nil
	}
	moved, err := translator.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return &migration{plugin: plugin, err: err}
	}
	m := &migration{plugin: plugin, affinity: moved.Spec.NodeAffinity}
	if moved.Spec.CSI != nil {
		m.key = volume.Key{Driver: moved.Spec.CSI.Driver, Handle: moved.Spec.CSI.VolumeHandle}
	}
	return m
}

// inlineKey is the CSI volume of a pod's inline in-tree volume; false for any
// other. CSI's own inline volumes are never attached, so no limit counts them.
func inlineKey(vol *corev1.Volume, namespace string) (volume.Key, bool) {
	translator := csitranslation.New()
	if !translator.IsInlineMigratable(vol) {
		return volume.Key{}, false
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(nil, vol)
	if err != nil || !migrates(plugin) {
		return volume.Key{}, false
	}
	pv, err := translator.TranslateInTreeInlineVolumeToCSI(klog.Logger{}, vol, namespace)
	if err != nil || pv == nil || pv.Spec.CSI == nil {
		return volume.Key{}, false
	}
	return volume.Key{Driver: pv.Spec.CSI.Driver, Handle: pv.Spec.CSI.VolumeHandle}, true
}

// driverOf is the CSI driver of a provisioner, which may be an in-tree plugin's
// name. migrated: the plugin's volumes count only where the node has a CSINode.
func driverOf(provisioner string) (driver string, migrated bool) {
	translator := csitranslation.New()
	if !translator.IsMigratableIntreePluginByName(provisioner) {
		return provisioner, false
	}
	if !migrates(provisioner) {
		return "", true
	}
	name, err := translator.GetCSINameFromInTreeName(provisioner)
	if err != nil {
		return "", true
	}
	return name, true
}
