package desired

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

// Snapshot is what the node should hold, as of one moment.
type Snapshot struct {
	// Synced says that Pods is the complete list.
	Synced bool
	// Settled says that also every claim and PersistentVolume in use has been
	// read: a volume that is not in Volumes is not wanted.
	Settled bool
	// Pods are the pods bound to this node, by UID.
	Pods map[string]Pod
	// Volumes are the volumes that pods may be given.
	Volumes map[volume.Key]*plan.Wanted
}

// Pod is one pod of the node.
type Pod struct {
	Pod   plan.Pod
	State plan.PodState
	// Volumes are its volumes from claims, in the order of pod.spec.volumes.
	Volumes []PodVolume
}

// PodVolume is one volume of a pod.
type PodVolume struct {
	// Name is its name in pod.spec.volumes.
	Name string
	// Problem is why the pod cannot have it now; the fields below are then empty.
	Problem *volume.Refusal

	Key      volume.Key
	PV       string
	Block    bool
	ReadOnly bool
}

// PodState is what the snapshot says of a pod.
func (s *Snapshot) PodState(uid string) plan.PodState {
	if p, ok := s.Pods[uid]; ok {
		return p.State
	}
	if s.Synced {
		return plan.PodAbsent
	}
	return plan.PodUnknown
}

// lookups are the objects that pods refer to. The last result of Claim and
// PersistentVolume is false while the object has not been read.
type lookups interface {
	Claim(namespace, name string) (*corev1.PersistentVolumeClaim, bool)
	PersistentVolume(name string) (*corev1.PersistentVolume, bool)
	CSIDriver(name string) *storagev1.CSIDriver
	Node() *corev1.Node
}

// build makes the snapshot of a complete list of pods.
func build(pods []*corev1.Pod, l lookups) *Snapshot {
	s := &Snapshot{Synced: true, Settled: true, Pods: make(map[string]Pod, len(pods)), Volumes: make(map[volume.Key]*plan.Wanted)}
	// In the order of their UIDs, so that the same objects give the same snapshot.
	pods = slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	for _, pod := range pods {
		p := Pod{Pod: plan.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}, State: stateOf(pod)}
		for i := range pod.Spec.Volumes {
			r := resolver{pod: pod, source: &pod.Spec.Volumes[i], l: l}
			if !r.relevant() {
				continue
			}
			found := r.resolve()
			if p.State == plan.PodActive {
				s.want(&found, p.Pod)
			}
			s.Settled = s.Settled && !found.unread
			p.Volumes = append(p.Volumes, found.PodVolume)
		}
		s.Pods[p.Pod.UID] = p
	}
	return s
}

// want adds a pod's use to the volume.
func (s *Snapshot) want(found *resolved, pod plan.Pod) {
	if found.Problem != nil {
		return
	}
	w, ok := s.Volumes[found.Key]
	if !ok {
		w = found.wanted
		s.Volumes[found.Key] = w
	}
	if w.PV != found.PV {
		// Two PersistentVolumes name one volume: it is held under one name.
		found.refuse(volume.ReasonVolumeInUse, "persistentvolume "+w.PV+" names the same volume handle")
		return
	}
	if slices.ContainsFunc(w.Pods, func(u plan.PodUse) bool { return u.Pod == pod }) {
		return // one claim twice in one pod: one publication serves both
	}
	w.Pods = append(w.Pods, found.use)
}

func stateOf(pod *corev1.Pod) plan.PodState {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return plan.PodTerminal
	case pod.DeletionTimestamp != nil:
		return plan.PodDeleting
	default:
		return plan.PodActive
	}
}
