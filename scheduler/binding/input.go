package binding

import (
	"iter"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Node is what a decision may know of a node. It comes from the scheduler's
// own snapshot of the cycle, so it is as old as that cycle.
type Node struct {
	Name   string
	Labels map[string]string
}

// Place is where a volume can be reached from.
type Place interface {
	// Matches reports whether the node lies in the place.
	Matches(Node) bool
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
	AccessModes     []v1.PersistentVolumeAccessMode
	Labels          map[string]string
	// Place is nil for a volume without node affinity: it is everywhere.
	Place Place
}

// reachable reports whether the volume can be used on the node.
func (v *Volume) reachable(node Node) bool { return v.Place == nil || v.Place.Matches(node) }

// Class is a StorageClass, reduced to what a decision reads.
type Class struct {
	Name string
	// Provisions is false where the class has no provisioner.
	Provisions bool
	// AllowedTopologies: terms are ORed, their expressions ANDed; none allows
	// every node.
	AllowedTopologies []v1.TopologySelectorTerm
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
	AccessModes     []v1.PersistentVolumeAccessMode
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
}

// Pod is the question: the claims of one pod, classified. Delayed is sorted by
// NewPod; none of it changes during a cycle.
type Pod struct {
	Bound   []Claim
	Delayed []Claim
}

// Shelf holds volumes of one class that one node can reach, smallest first.
type Shelf interface {
	// From yields the volumes of at least that many bytes, by rising capacity,
	// then by name.
	From(capacity int64) iter.Seq[*Volume]
}

// Segment is one CSIStorageCapacity that a node can reach.
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
	// Shelves returns the unclaimed volumes of the class that the node
	// reaches, grouped as the index has them.
	Shelves(class string, node Node) []Shelf
	// Segments returns the capacity objects of the class that the node reaches.
	Segments(class string, node Node) []Segment
	// MostAvailable is the most that a new volume of the class could have on
	// any node that the class allows, in bytes, and false where no such node
	// has a segment. It depends on no node, and is asked for refusals only.
	MostAvailable(class *Class) (int64, bool)
}
