package story

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

const (
	namespace = "story"

	// The StatefulSet. Its filesystem is xfs, since growing a mounted ext4 needs
	// CAP_SYS_RESOURCE (Linux, fs/ext4/ioctl.c), which even root may lack in a
	// container or a virtual machine of somebody else's.
	setName   = "web"
	setVolume = "data"
	replicas  = 3
	claimSize = 320 * volume.MiB
	grownSize = 384 * volume.MiB
	zone      = "zone-1"
	// otherNode is the one that lies in another zone.
	otherNode = "node-2"

	// The classes, by what is special about each.
	class          = "story-zone-1"
	classKept      = "story-kept"
	classXFS       = "story-xfs"
	classExt4      = "story-ext4"
	classImmediate = "story-immediate"
)

// Cluster makes the options those of the cluster that the story plays on.
//
// Room is chosen so that it decides. Of the set's three claims, node-1 has room
// for two and node-3 for one; node-2, in the wrong zone, has the most. After the
// set, the kept volumes and the pod with two filesystems, node-1 and node-2 are
// left with about as much, and node-3 with too little for a claim of the
// immediate class. Once the agent of node-2 has let the large xfs go, node-2
// alone has room for the stock scheduler's pod.
func Cluster(o sandbox.Options) sandbox.Options {
	o.Nodes, o.Zones = 3, 2
	o.PoolSizes = map[string]int64{
		"node-1": 1040 * volume.MiB,
		"node-2": 1168 * volume.MiB,
		"node-3": 504 * volume.MiB,
	}
	return o
}

// wantPods is how many of the set's pods each node has room for.
func wantPods() map[string]int { return map[string]int{"node-1": 2, "node-3": 1} }

func classes() []*storagev1.StorageClass {
	zoned := classOf(class, "xfs", "zone-1")
	zoned.AllowVolumeExpansion = new(true)
	kept := classOf(classKept, "ext4", "zone-2")
	kept.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
	immediate := classOf(classImmediate, "ext4", "")
	immediate.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	return []*storagev1.StorageClass{zoned, kept, immediate, classOf(classXFS, "xfs", ""), classOf(classExt4, "ext4", "")}
}

// classOf is a class of one filesystem, in one zone or, with "", in any.
func classOf(name, fsType, zone string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       volume.DriverName,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		Parameters:        map[string]string{volume.ParameterFSType: fsType},
	}
	if zone != "" {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: volume.LabelZone, Values: []string{zone}}},
		}}
	}
	return c
}
