package plan

import (
	"fmt"
	"strings"

	"github.com/berth-storage/berth/volume"
)

// SecretRef names a Secret; the zero value names none.
type SecretRef struct{ Namespace, Name string }

// Wanted is one volume that pods of this node ask for, as the API objects say.
// It is immutable once made; Context and MountOptions may be shared.
type Wanted struct {
	Key volume.Key
	// PV names the PersistentVolume; PVC the claim that it is bound to.
	PV  string
	PVC Claim
	// Block asks for a raw device instead of a filesystem.
	Block        bool
	FSType       string
	MountOptions []string
	// AccessMode is the first of the PersistentVolume's: the one that CSI is told.
	AccessMode string
	// Context is the PersistentVolume's volumeAttributes.
	Context map[string]string
	// NeedsAttach is set where the driver's CSIDriver asks for attaching, or is
	// missing. Such a volume waits.
	NeedsAttach bool
	// StageSecret, PublishSecret and ExpandSecret go to the calls of that name.
	StageSecret, PublishSecret, ExpandSecret SecretRef
	// ChownToFSGroup says that the driver's fsGroupPolicy lets the node give
	// the volume's files to the pod's group.
	ChownToFSGroup bool
	// GrowTo is the size in bytes that the claim waits for on the node; 0 while
	// it waits for nothing.
	GrowTo int64
	// Pods want it, ordered by UID. Only pods that may run are here.
	Pods []PodUse
}

// Claim names a PersistentVolumeClaim.
type Claim struct{ Namespace, Name, UID string }

// PodUse is how one pod uses a volume.
type PodUse struct {
	Pod Pod
	// Name is the volume's name in pod.spec.volumes.
	Name     string
	ReadOnly bool
	// PodInfo is merged into the volume context at publication, where the
	// driver asks for it.
	PodInfo map[string]string
	// FSGroup is to own the volume's files; nil leaves them.
	FSGroup *int64
	// FSGroupIfRootDiffers skips the files when the root is right already
	// (fsGroupChangePolicy OnRootMismatch).
	FSGroupIfRootDiffers bool
}

// Pod identifies a pod.
type Pod struct{ Namespace, Name, UID string }

// Record is what the node did to one volume, and is enough to undo it without
// any API object.
type Record struct {
	Key volume.Key
	PV  string
	// Block tells the two layouts apart.
	Block bool
	// Stage is the staging, shared by all pods.
	Stage Effect
	// Grow is the last growth, to GrownTo bytes.
	Grow    Effect
	GrownTo int64
	// Pods are the publications, by pod UID.
	Pods map[string]PodRecord
}

// PodRecord is one pod's publication.
type PodRecord struct {
	Pod Pod
	// Volume is the volume's name in pod.spec.volumes; "" where the agent that
	// published it did not write it down yet.
	Volume   string
	Publish  Effect
	ReadOnly bool
	Custody  Custody
}

// Empty reports that there is nothing to undo. A growth is never undone; one
// that is still owed shows in the claim.
func (r Record) Empty() bool { return r.Stage.State == Absent && len(r.Pods) == 0 }

// HoldsFor reports whether the record has, or may have, a publication of the
// pod's volume of that name.
func (r Record) HoldsFor(u PodUse) bool {
	p := r.Pods[u.Pod.UID]
	return p.Publish.State != Absent && p.Volume != "" && p.Volume == u.Name
}

// Driver is what is known of a volume's driver.
type Driver struct {
	// Registered is false for one that cannot be called now.
	Registered bool
	// Stages and Grows are its capabilities STAGE_UNSTAGE_VOLUME and
	// EXPAND_VOLUME.
	Stages, Grows bool
}

// Input is everything that Next may look at.
type Input struct {
	// Root is the agent's root folder, /var/lib/kubelet on a kubelet's node.
	Root string
	// Wanted is nil when no pod wants the volume, as far as is known.
	Wanted *Wanted
	// Synced says that the list of pods is complete: only then does a nil
	// Wanted mean something.
	Synced bool
	Record Record
	// Mounted are the recorded paths at which something is mounted, read after
	// the last step on this volume.
	Mounted map[string]bool
	Driver  Driver
	// Former are the pods of Wanted, by UID, for which the record of another
	// volume holds the pod volume of the same name. A claim that was deleted and
	// made anew leads there: a pod keeps the volume that it started with.
	Former map[string]volume.Key
	// PodState tells of every pod in Record. A missing one is PodUnknown.
	PodState map[string]PodState
}

// Op is what a step does.
type Op string

// The steps. Attach and Detach will join them, between the driver's check and
// Stage, and after Unstage: until then NeedsAttach makes a volume wait.
const (
	OpStage     Op = "stage"
	OpPublish   Op = "publish"
	OpGrow      Op = "expand"
	OpUnpublish Op = "unpublish"
	OpUnstage   Op = "unstage"
	// OpForget drops a pod from the record: nothing of it is left.
	OpForget Op = "forget"
)

// Link is the link of the chain that the step works on.
func (o Op) Link() volume.Link {
	switch o {
	case OpStage:
		return volume.LinkStage
	case OpPublish:
		return volume.LinkPublish
	case OpGrow:
		return volume.LinkExpand
	case OpUnpublish, OpForget:
		return volume.LinkUnpublish
	case OpUnstage:
		return volume.LinkUnstage
	default:
		panic("step " + string(o) + " does not exist")
	}
}

// Step is one thing to do. It is a plain value: what it does can be read off
// its text.
type Step struct {
	Op  Op
	Key volume.Key
	// Pod is the UID of the pod that Publish, Unpublish and Forget are for.
	Pod string
	// Staging is the staging path, "" for a driver that does not stage.
	Staging string
	// Target is the path to publish at, or to grow.
	Target string
	// Size is what Grow asks for, in bytes.
	Size int64
}

// String is the step as transcripts and logs show it.
func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", s.Op, s.Key)
	if s.Pod != "" {
		fmt.Fprintf(&b, " pod=%s", s.Pod)
	}
	if s.Staging != "" {
		fmt.Fprintf(&b, " staging=%s", s.Staging)
	}
	if s.Target != "" {
		fmt.Fprintf(&b, " target=%s", s.Target)
	}
	if s.Size != 0 {
		fmt.Fprintf(&b, " size=%d", s.Size)
	}
	return b.String()
}

// Wait is why something that is owed is not among the steps.
type Wait struct {
	// Pod is the UID of the pod that waits, "" for the volume itself.
	Pod string
	volume.Refusal
}

// Plan is what to do now, in order, and what waits. A step is done only if
// those before it succeeded.
type Plan struct {
	Steps []Step
	Waits []Wait
}
