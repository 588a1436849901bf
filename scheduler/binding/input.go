package binding

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Node is what a decision may know of a node. It comes from the scheduler's
// own snapshot of the cycle, so it is as old as that cycle.
type Node struct {
	Name   string
	Labels map[string]string
	// Migrated are the in-tree plugins whose volumes the node handles as CSI
	// ones, comma separated: volume.AnnMigratedPlugins of its CSINode. Only read
	// for a Pod with InTree volumes.
	Migrated string
	// Tainted: the node has a taint, of which a driver's startup taint is one.
	Tainted bool

	// Seen is what a View remembers of the node, for that View alone; of is the
	// View. See Question.Node.
	Seen any
	of   View
}

// Place is where a volume can be reached from.
type Place interface {
	// Matches reports whether the node lies in the place.
	Matches(node *Node) bool
	// String describes the place for a person.
	String() string
}

// Volume is a PersistentVolume, reduced to what a decision reads.
type Volume struct {
	Name string
	UID  string
	// Class is the name of the volume's StorageClass, empty for none.
	Class string
	// Capacity is in bytes.
	Capacity int64
	// Block is true for volumeMode Block; a missing mode is Filesystem.
	Block bool
	// AttributesClass is the VolumeAttributesClass, empty for none.
	AttributesClass string
	AccessModes     []corev1.PersistentVolumeAccessMode
	Labels          map[string]string
	// Place is nil for a volume without node affinity: it is everywhere.
	Place Place
	// InTree is set for a volume of a plugin that a CSI driver took over.
	InTree *InTree
}

// InTree is what becomes of a volume on a node that handles its plugin as CSI.
type InTree struct {
	// Plugin is the in-tree plugin's name.
	Plugin string
	// Place is the translated one: the driver's topology key in the place of the
	// well-known zone labels. nil is everywhere.
	Place Place
	// Err says that the volume cannot be translated, which is an error on the
	// nodes that need it.
	Err error
}

// Reachable reports whether the volume, once bound, can be used on the node. An
// error is one of InTree.
func (v *Volume) Reachable(node *Node) (bool, error) {
	place := v.Place
	if v.InTree != nil && hasPlugin(node.Migrated, v.InTree.Plugin) {
		if v.InTree.Err != nil {
			return false, v.InTree.Err
		}
		place = v.InTree.Place
	}
	return place == nil || place.Matches(node), nil
}

// Class is a StorageClass, reduced to what a decision reads.
type Class struct {
	Name string
	// Provisions is false where the class has no provisioner.
	Provisions bool
	// AllowedTopologies: terms are ORed, their expressions ANDed; none allows
	// every node.
	AllowedTopologies []corev1.TopologySelectorTerm
	// TracksCapacity is CSIDriver.spec.storageCapacity of the provisioner:
	// only then does a missing or small CSIStorageCapacity refuse a node.
	TracksCapacity bool
}

// Claim is a PersistentVolumeClaim with everything that was looked up for it.
type Claim struct {
	// Key is namespace/name; UID tells a claim from its namesake.
	Key   string
	UID   string
	Class Class

	// Request is in bytes. HasRequest is false for a claim that asks for no
	// size: it fits everywhere.
	Request    int64
	HasRequest bool

	Block           bool
	AttributesClass string
	AccessModes     []corev1.PersistentVolumeAccessMode
	// Selector is nil for a claim without one.
	Selector labels.Selector

	// VolumeName and Volume belong to a bound claim. Volume is nil where no
	// PersistentVolume of that name is known; as old as the informer's store.
	VolumeName string
	Volume     *Volume

	// SelectedNode is the node that the claim is being provisioned on: from
	// the claim's annotation, or from a reservation that is not written yet.
	SelectedNode string

	// Reserved is the PersistentVolume whose claimRef names this claim before
	// the claim is bound, or nil.
	Reserved *Volume

	// Source is where the claim's data comes from, nil where that ties it to no
	// place.
	Source *Source

	// Refused are the nodes whose driver said lately that it has no room for a
	// claim of this class and size, although its published capacity says
	// otherwise.
	Refused map[string]struct{}
}

// Source is the snapshot or volume that a new volume is made from, and the
// place that both have to be in.
type Source struct {
	// Name is for people: "snapshot default/monday".
	Name  string
	Place Place
}

// Pod is the question: the claims of one pod, classified. Delayed is sorted by
// NewPod; none of it changes during a cycle.
type Pod struct {
	Bound   []Claim
	Delayed []Claim
	// InTree: at least one bound volume has InTree, so nodes need Migrated.
	InTree bool
}

// Taker is given volumes by a Shelf.
type Taker interface {
	// Take is told the next volume of a list that rises by capacity, then by
	// name. It answers false where the rest of that list is of no use.
	Take(v *Volume) bool
}

// Shelf holds the unclaimed volumes that a claim could take by class, volume
// mode, attributes class and access modes.
type Shelf interface {
	// Ascend gives the taker the volumes of at least that many bytes that the
	// node reaches. They may come as several rising lists, and one volume may
	// stand in two of them.
	Ascend(node *Node, capacity int64, take Taker)
}

// Room is the capacity that is published for one class.
type Room interface {
	// Segments appends the capacity objects that the node reaches.
	Segments(buf []*Segment, node *Node) []*Segment
}

// Segment is one CSIStorageCapacity that a node can reach. It never changes.
type Segment struct {
	// Pool names the storage behind the object. Objects of several classes
	// that share one pool share its bytes.
	Pool string
	// Available is capacity minus holds, in bytes; below zero when holds and
	// capacity overlap for a moment. Unlimited is set for an object that
	// publishes only a maximum volume size.
	Available int64
	Unlimited bool
	// Capacity is what the object publishes, in bytes.
	Capacity int64
	// MaximumVolumeSize bounds one volume, in bytes, where Bounded is set. A
	// published bound of 0 means that no volume is possible.
	MaximumVolumeSize int64
	Bounded           bool
}

// View is the snapshot of volumes and capacity. It never changes; it is as old
// as the cycle that took it, plus the lag of the watches.
type View interface {
	// Node is a node as the View knows it: what it remembers of this very object
	// is in Seen, so that it need not be looked up once a claim.
	Node(object *corev1.Node) Node
	// Shelf and Room are asked once a claim and cycle, not once a node.
	Shelf(claim *Claim) Shelf
	Room(class string) Room
	// MostAvailable is the most that a new volume of the class could have on
	// any node that the class allows, in bytes, and false where no such node
	// has a segment. It depends on no node, and is asked for refusals only.
	MostAvailable(class *Class) (int64, bool)
}
