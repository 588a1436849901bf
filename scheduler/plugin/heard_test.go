package plugin

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestRememberedLimitRaised: a node that is full by a remembered limit gets a
// published one that is larger.
func TestRememberedLimitRaised(t *testing.T) {
	running, pod := fakeapi.Pod("x", "a", "b"), fakeapi.Pod("p", "c")
	running.Spec.NodeName = "n1"
	r := attachCluster(t, pod).start(t.Context(), running)
	silent := makeCSINode(nil)
	silent.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driverName, NodeID: "n1"}}
	r.Put(silent)
	r.seen(func() bool { _, kept := r.plugin.cache.Remembered("n1", driverName); return kept })
	if _, refused := r.judge(pod); len(refused) != 1 {
		t.Fatalf("setup: %v", refused)
	}
	raised := makeCSINode(map[string]int32{driverName: 10})
	r.Put(raised)
	r.seen(func() bool { _, kept := r.plugin.cache.Remembered("n1", driverName); return !kept })
	if h := r.hint(fwk.CSINode, pod, silent, raised); h != fwk.Queue {
		t.Errorf("the hint says %v", h)
	}
	if _, refused := r.judge(pod); len(refused) != 0 {
		t.Errorf("setup: there is no room: %v", refused)
	}
}

// TestHoldEndsByStaticVolume: a selected claim is given a volume that exists.
func TestHoldEndsByStaticVolume(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	other := fakeapi.PVC("b", "fast", "6Gi")
	metav1.SetMetaDataAnnotation(&other.ObjectMeta, volume.AnnSelectedNode, "n1")
	hand := fakeapi.PV("hand", "fast", "6Gi", "n9")
	c := newCluster(t, fakeapi.Node("n1"), fakeapi.Driver(driverName), fakeapi.Class("fast", driverName), fakeapi.Capacity("fast", "n1", "8Gi", 5),
		fakeapi.PVC("a", "fast", "6Gi"), other, hand, pod)
	r := c.start(t.Context())
	var refused map[string]string
	r.seen(func() bool { _, refused = r.judge(pod); return len(refused) == 1 })
	oldPV, oldPVC := c.Volume("hand"), c.Claim("b")
	newPV := oldPV.DeepCopy()
	newPV.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "b", UID: other.UID}
	newPV.Status.Phase = corev1.VolumeBound
	c.Put(newPV)
	newPV = c.Volume("hand")
	c.Put(fakeapi.BoundTo(oldPVC, "hand"))
	newPVC := c.Claim("b")
	r.seen(func() bool {
		pv, pvc := r.plugin.cache.Volume("hand"), r.plugin.cache.ClaimByKey("default/b")
		return pv.Spec.ClaimRef != nil && pvc.Spec.VolumeName != ""
	})
	byVolume, byClaim := r.hint(fwk.PersistentVolume, pod, oldPV, newPV), r.hint(fwk.PersistentVolumeClaim, pod, oldPVC, newPVC)
	if byVolume != fwk.Queue && byClaim != fwk.Queue {
		t.Errorf("no hint wakes the pod: volume %v, claim %v", byVolume, byClaim)
	}
	if _, refused = r.judge(pod); len(refused) != 0 {
		t.Errorf("setup: there is no room: %v", refused)
	}
}

// TestRefusalEndsHeard: any new version of a capacity object ends a refusal, and
// its timer.
func TestRefusalEndsHeard(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	claim := fakeapi.PVC("a", "fast", "6Gi")
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, "n1")
	r := dynamicCluster(t, claim, pod).start(t.Context())
	r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 1 })
	r.Put(fakeapi.PVC("a", "fast", "6Gi"))
	// n1 is shunned for n2, whose volumes have room; n2 is no place for the pod by
	// the verdict of another plugin.
	r.seen(func() bool {
		_, refused := r.judge(pod)
		_, n1 := refused["n1"]
		_, n2 := refused["n2"]
		return n1 && !n2
	})
	old, shrunk := fakeapi.Capacity("fast", "n1", "8Gi", 5), fakeapi.Capacity("fast", "n1", "7Gi", 5)
	old.ResourceVersion = "1"
	r.Put(shrunk)
	// Another pod of the claim is asked, as the pod itself waits.
	r.seen(func() bool { _, refused := r.judge(fakeapi.Pod("probe", "a")); return len(refused) == 0 })
	if h := r.hint(fwk.CSIStorageCapacity, pod, old, shrunk); h != fwk.Queue {
		t.Errorf("n1 is a choice again and the hint says %v", h)
	}
}

// TestShunnedFor: a pod that another node was shunned for hears of all that
// happens to nodes: one of them may be the node that had room.
func TestShunnedFor(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	claim := fakeapi.PVC("a", "fast", "6Gi")
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, "n1")
	r := dynamicCluster(t, claim, pod).start(t.Context())
	r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 1 })
	r.Put(fakeapi.PVC("a", "fast", "6Gi"))
	r.seen(func() bool {
		_, refused := r.judge(pod)
		_, n1 := refused["n1"]
		_, n2 := refused["n2"]
		return n1 && !n2
	})
	cordoned := fakeapi.Node("n2")
	cordoned.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
	if h := r.hint(fwk.Node, pod, fakeapi.Node("n2"), cordoned); h != fwk.Queue {
		t.Errorf("n2 takes nothing any more and the hint says %v", h)
	}
	if h := r.hint(fwk.Node, pod, fakeapi.Node("n2"), nil); h != fwk.Queue {
		t.Errorf("n2 is gone and the hint says %v", h)
	}
}

// TestSharingEnds: the object that made two classes share a pool is deleted, and
// with it the hold of the other class.
func TestSharingEnds(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	other := fakeapi.PVC("x", "slow", "6Gi")
	metav1.SetMetaDataAnnotation(&other.ObjectMeta, volume.AnnSelectedNode, "n1")
	gone := fakeapi.Capacity("slow", "n1", "8Gi", 5)
	c := newCluster(t, fakeapi.Node("n1"), fakeapi.Driver(driverName), fakeapi.Class("fast", driverName), fakeapi.Class("slow", driverName),
		fakeapi.Capacity("fast", "n1", "8Gi", 5), gone, fakeapi.PVC("a", "fast", "6Gi"), other, pod)
	r := c.start(t.Context())
	r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 1 })
	r.Delete(gone)
	r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 0 })
	if h := r.hint(fwk.CSIStorageCapacity, pod, gone, nil); h != fwk.Queue {
		t.Errorf("there is room and the hint says %v", h)
	}
}

// TestUndoUnderAnother: two pods of one claim reserved it before either wrote.
func TestUndoUnderAnother(t *testing.T) {
	pod, second := fakeapi.Pod("web", "sta"), fakeapi.Pod("second", "sta")
	c := newCluster(t, fakeapi.Node("n1"), fakeapi.Class("local", "kubernetes.io/no-provisioner"), fakeapi.PV("vol", "local", "2Gi", "n1"), fakeapi.PVC("sta", "local", "1Gi"), pod, second)
	r := c.start(t.Context())
	cy, _ := r.judge(pod)
	if s := cy.reserve("n1"); !s.IsSuccess() {
		t.Fatal(s)
	}
	cy2, _ := r.judge(second)
	if s := cy2.reserve("n1"); !s.IsSuccess() {
		t.Fatal(s)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		cy.bind(ctx, "n1")
	}()
	r.seen(func() bool {
		pv := r.plugin.cache.Volume("vol")
		return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != ""
	})
	r.plugin.cache.Observe(r.plugin.cache.Volume("vol"))
	cancel(errors.New("preempted"))
	<-failed
	cy.unreserve()
	if c.Volume("vol").Spec.ClaimRef == nil {
		t.Error("the volume was given back under the pod that still has it reserved")
	}
}

// TestPoolOfAnotherClass: what a volume takes from a pool, it takes from every
// class that the pool serves, whatever class stands in the volume.
func TestPoolOfAnotherClass(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	taken := fakeapi.PV("odd", "local", "6Gi", "n1")
	taken.Status.Phase = corev1.VolumeReleased
	taken.Annotations = map[string]string{volume.AnnotationPool: "pool-n1", volume.AnnotationAllocation: "9"}
	c := newCluster(t, fakeapi.Node("n1"), fakeapi.Driver(driverName), fakeapi.Class("fast", driverName), fakeapi.Capacity("fast", "n1", "8Gi", 5), fakeapi.PVC("a", "fast", "6Gi"), taken, pod)
	r := c.start(t.Context())
	r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 1 })
	r.Delete(taken)
	r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 0 })
	if h := r.hint(fwk.PersistentVolume, pod, taken, nil); h != fwk.Queue {
		t.Errorf("there is room and the hint says %v", h)
	}
}

// TestHoldLeavesPool: the node of a hold leaves the pool, and others have room.
func TestHoldLeavesPool(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	other := fakeapi.PVC("x", "fast", "6Gi")
	metav1.SetMetaDataAnnotation(&other.ObjectMeta, volume.AnnSelectedNode, "n2")
	zonal := fakeapi.Capacity("fast", "zone", "8Gi", 5)
	zonal.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}}
	before, after := fakeapi.Node("n2", "zone", "a"), fakeapi.Node("n2", "zone", "b")
	c := newCluster(t, fakeapi.Node("n1", "zone", "a"), before, fakeapi.Driver(driverName), fakeapi.Class("fast", driverName), zonal, fakeapi.PVC("a", "fast", "6Gi"), other, pod)
	r := c.start(t.Context())
	r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 2 })
	r.Put(after)
	r.seen(func() bool { _, refused := r.judge(pod); _, n1 := refused["n1"]; return !n1 })
	if h := r.hint(fwk.Node, pod, before, after); h != fwk.Queue {
		t.Errorf("n1 has room and the hint says %v", h)
	}
}

// TestUnreadableAllocation: an allocation that is no number is none.
func TestUnreadableAllocation(t *testing.T) {
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "6Gi"), fakeapi.Pod("web", "a")).start(t.Context())
	odd := fakeapi.Capacity("fast", "n1", "8Gi", 5)
	odd.Annotations[volume.AnnotationAllocation] = "five"
	odd.ResourceVersion = "1"
	next := odd.DeepCopy()
	next.ResourceVersion = "2"
	if _, n := volume.NumberOf(odd.Annotations); n != volume.Unnumbered {
		t.Fatal("setup: it is numbered")
	}
	if h := r.hint(fwk.CSIStorageCapacity, fakeapi.Pod("web", "a"), odd, next); h != fwk.Queue {
		t.Errorf("a new version ends what is held against an unnumbered object, and the hint says %v", h)
	}
}

// TestSameForAll: what profiles have in common may be said in several ways.
func TestSameForAll(t *testing.T) {
	one, err := decodeArgs(&runtime.Unknown{Raw: []byte("sharedPools: []")})
	two, err2 := decodeArgs(nil)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(one.Common(), two.Common()); diff != "" {
		t.Errorf("both have no shared pools, and the second profile is refused: (-one +other)\n%s", diff)
	}
}
