// Package scope says for which part of a cluster a set of controllers acts: so
// far one driver on one node. The rooms under controller/ take a Scope and ask
// it what is theirs; none of them compares node names itself. A scope of a
// whole cluster is a Scope without a node and needs no change in the rooms'
// decisions.
package scope

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/volume"
)

// ManagedBy is the value of volume.LabelCapacityManagedBy on the capacity
// objects that Berth writes.
const ManagedBy = "berth"

// Scope is one driver on one node.
type Scope struct {
	// Driver is the CSI driver's name.
	Driver string
	// Node is the name of the Node object.
	Node string
}

// Validate reports what is missing.
func (s Scope) Validate() error {
	switch {
	case s.Driver == "":
		return errors.New("controller scope: the driver's name is empty; set Scope.Driver")
	case s.Node == "":
		return errors.New("controller scope: the node's name is empty; set Scope.Node")
	default:
		return nil
	}
}

// Identity goes into volumeAttributes as
// storage.kubernetes.io/csiProvisionerIdentity. It is the same after every
// start, so that building a PersistentVolume twice gives the same object.
func (s Scope) Identity() string { return s.Driver + "-" + s.Node }

// OwnsClaim reports that the claim asks this driver for a volume and that the
// scheduler chose this node for it. It reads metadata only. The binding mode
// of the class does not matter: whoever selects the node for an Immediate
// claim has made the same choice.
func (s Scope) OwnsClaim(claim metav1.Object) bool {
	a := claim.GetAnnotations()
	return provisioner(a) == s.Driver && a[volume.AnnSelectedNode] == s.Node
}

// provisioner is who is to provision a claim with these annotations: the CSI
// driver that took over an in-tree plugin first, then the current key, then
// the older one.
func provisioner(a map[string]string) string {
	for _, key := range []string{
		volume.AnnMigratedTo, volume.AnnStorageProvisioner, volume.AnnBetaStorageProvisioner,
	} {
		if p := a[key]; p != "" {
			return p
		}
	}
	return ""
}

// OwnsVolume reports that the PersistentVolume was provisioned by this driver
// for this node.
func (s Scope) OwnsVolume(pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == s.Driver &&
		pv.Annotations[volume.AnnProvisionedBy] == s.Driver &&
		pv.Labels[volume.LabelNode] == volume.NodeLabelValue(s.Node)
}

// CapacityLabels select the capacity objects of this scope.
func (s Scope) CapacityLabels() map[string]string {
	return map[string]string{
		volume.LabelCapacityDriver:    s.Driver,
		volume.LabelCapacityManagedBy: ManagedBy,
		volume.LabelNode:              volume.NodeLabelValue(s.Node),
	}
}

// Claims says which claims the cache holds.
type Claims int

const (
	// AllClaims is every claim of the cluster. It needs nobody's help.
	AllClaims Claims = iota
	// LabelledClaims is those that carry volume.LabelNode with the node's name.
	// Somebody has to keep that label: controller/claimwatch says who, and for
	// which nodes that is possible.
	LabelledClaims
)

// String is the word for it that users know from --claim-watch.
func (c Claims) String() string {
	if c == LabelledClaims {
		return "labelled"
	}
	return "all"
}

// Cache is what the manager's cache should hold, for cache.Options.ByObject:
// of nodes, CSINodes, PersistentVolumes and capacity objects only this node's
// own, so that the memory of an agent does not grow with the cluster; of claims
// what claims says. StorageClasses are held whole. capacityNamespace is where
// the capacity objects are.
func (s Scope) Cache(capacityNamespace string, claims Claims) map[client.Object]cache.ByObject {
	own := fields.OneTermEqualSelector("metadata.name", s.Node)
	trim := cache.TransformStripManagedFields()
	ofClaims := cache.ByObject{Transform: trim}
	if claims == LabelledClaims {
		ofClaims.Label = labels.SelectorFromSet(labels.Set{volume.LabelNode: s.Node})
	}
	return map[client.Object]cache.ByObject{
		&corev1.Node{}:       {Field: own, Transform: trim},
		&storagev1.CSINode{}: {Field: own, Transform: trim},
		&corev1.PersistentVolume{}: {
			Label:     labels.SelectorFromSet(labels.Set{volume.LabelNode: volume.NodeLabelValue(s.Node)}),
			Transform: trim,
		},
		&storagev1.CSIStorageCapacity{}: {
			Namespaces: map[string]cache.Config{capacityNamespace: {}},
			Label:      labels.SelectorFromSet(s.CapacityLabels()),
			Transform:  trim,
		},
		&corev1.PersistentVolumeClaim{}: ofClaims,
		&storagev1.StorageClass{}:       {Transform: trim},
	}
}
