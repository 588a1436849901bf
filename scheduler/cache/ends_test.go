package cache

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// TestHugeRequest: a claim that asks for more than an int64 of bytes is not one that
// asks for nothing: anybody may make it.
func TestHugeRequest(t *testing.T) {
	s := newStores(t)
	pv := localVolume("v", "n1", 1)
	pv.Spec.StorageClassName, pv.UID, pv.Status.Phase = "A", "uv", corev1.VolumeAvailable
	pv.Spec.NodeAffinity = nil
	s.set(pv)
	c := pvc("u1", "2", "")
	c.Spec.AccessModes = pv.Spec.AccessModes
	c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("100E")
	s.set(c)
	q, err := s.Ask([]*corev1.PersistentVolumeClaim{c})
	if err != nil {
		t.Fatal(err)
	}
	v := binding.Find(q.Question, q.Node(s.Node("n1")))
	for _, b := range v.Bindings {
		t.Errorf("a claim of 100E gets volume %s of %d bytes", b.Volume.Name, b.Volume.Capacity)
	}
}

// TestSecondVolumeOfAClaimGoes: a claim that has its volume holds nothing, whatever becomes
// of another volume that names it.
func TestSecondVolumeOfAClaimGoes(t *testing.T) {
	l := newLedger(time.Minute, newPlaces(newAtlas()))
	l.setNode("n1", nodeLabels("n1"))
	offer(l, capacityOf("A", "n1", "P", 5, 100, "1"))
	c := selected("A", "n1")
	l.setClaim(c)
	l.setVolume(volumeFacts{name: "static", claimUID: "c", bytes: 30, allocation: volume.Unnumbered})
	l.setVolume(volumeFacts{name: "pvc-c", claimUID: "c", pool: "P", allocation: 5, bytes: 30})
	c.volumeName, c.version = "static", "11"
	l.setClaim(c)
	l.deleteVolume("pvc-c")
	l.schedule(time.Unix(1, 0))
	l.expire(time.Unix(1000, 0))
	if got := free(l, "A", "n1"); got[0] != 100 {
		t.Errorf("%v free, want 100: the claim has its volume", got)
	}
}

// TestOccupancyOfANodeThatIsGone: nothing is remembered of a node that the API does not have:
// no event would tell when to forget it.
func TestOccupancyOfANodeThatIsGone(t *testing.T) {
	c := newStores(t)
	c.set(boundClaim("c0", "v0"))
	c.set(csiVolume("v0", "h0", "c0"))
	c.Occupancy(tenants(1, podOf("p", "c0")))
	c.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	// A cycle whose snapshot still has the node.
	c.Occupancy(tenants(1, podOf("p", "c0")))
	_, kept := c.occupied.Load("n1")
	if kept || len(c.attachments.tenants) > 0 || len(c.attachments.claimOn) > 0 {
		t.Errorf("kept for ever: occupied %v, tenants %v, claimOn %v", kept, c.attachments.tenants, c.attachments.claimOn)
	}
}

// TestTwoAttachmentsOfOneVolume: a node is still the volume's when one of two attachments goes.
func TestTwoAttachmentsOfOneVolume(t *testing.T) {
	c := newStores(t)
	c.set(csiVolume("v0", "h0", ""))
	c.set(csiVolume("v1", "h0", ""))
	c.set(attachmentTo("a0", "n1", "d", "v0"))
	c.set(attachmentTo("a1", "n1", "d", "v0"))
	c.set(attachmentTo("a2", "n1", "d", "v1"))
	c.remove(attachmentTo("a1", "n1", "d", "v0"))
	if got := c.Occupancy(tenants(1)).Used("d"); got != 1 {
		t.Fatalf("used %d, want 1", got)
	}
	c.set(csiVolume("v0", "other", ""))
	if got := c.Occupancy(tenants(1)).Used("d"); got != 2 {
		t.Errorf("used %d, want 2", got)
	}
}

// TestSpotsOfManyKeys: the number of combinations of a term does not overflow.
func TestSpotsOfManyKeys(t *testing.T) {
	var term corev1.NodeSelectorTerm
	for i := range 64 {
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: "k" + string(rune('a'+i%26)) + string(rune('a'+i/26)), Operator: corev1.NodeSelectorOpIn, Values: []string{"a", "b"},
		})
	}
	spots, whole := spotsOf(&term)
	if len(spots) > spotsMax || whole {
		t.Errorf("%d spots, and whole is %t; want at most %d, and each tested", len(spots), whole, spotsMax)
	}
}

// TestObjectOfAnotherClass: a capacity object that comes back under its name for another
// class takes the holds of its old class with it.
func TestObjectOfAnotherClass(t *testing.T) {
	l := newLedger(time.Minute, newPlaces(newAtlas()))
	l.setNode("n1", nodeLabels("n1"))
	a, b := capacityOf("A", "n1", "P", 5, 100, "1"), capacityOf("B", "n1", "P", 5, 100, "1")
	offer(l, a)
	offer(l, b)
	l.setClaim(selected("A", "n1"))
	again := a
	again.class, again.version = "C", "2"
	offer(l, again)
	rebuilt := newLedger(time.Minute, newPlaces(newAtlas()))
	rebuilt.setNode("n1", nodeLabels("n1"))
	offer(rebuilt, b)
	offer(rebuilt, again)
	rebuilt.setClaim(selected("A", "n1"))
	if got, want := free(l, "B", "n1"), free(rebuilt, "B", "n1"); got[0] != want[0] {
		t.Errorf("%v free, a rebuilt ledger has %v", got, want)
	}
	l.deleteCapacity(again.key)
	l.deleteCapacity(b.key)
	if len(l.pools) > 0 {
		t.Errorf("pools kept without an object: %v", l.pools)
	}
}

// TestVolumeLeavesItsClaim: a claim whose volume is given to another awaits one again.
func TestVolumeLeavesItsClaim(t *testing.T) {
	l := newLedger(time.Minute, newPlaces(newAtlas()))
	l.setNode("n1", nodeLabels("n1"))
	offer(l, capacityOf("A", "n1", "P", 5, 100, "1"))
	l.setClaim(selected("A", "n1"))
	l.setVolume(volumeFacts{name: "v", claimUID: "c", bytes: 30, allocation: volume.Unnumbered})
	for _, uid := range []string{"", "other"} {
		l.setVolume(volumeFacts{name: "v", claimUID: uid, bytes: 30, allocation: volume.Unnumbered})
		l.schedule(time.Unix(1, 0))
		l.expire(time.Unix(1000, 0))
		if got := free(l, "A", "n1"); got[0] != 70 {
			t.Errorf("%v free with the volume's claimRef %q, want 70: the claim is selected and has no volume", got, uid)
		}
	}
}

// TestNodeComesBackWithEqualLabels: a node that was gone is seen when it comes back, though
// its labels are what holds remembered.
func TestNodeComesBackWithEqualLabels(t *testing.T) {
	s := newStores(t)
	s.set(capacityObject("1", numbers("P", "5")))
	s.set(pvc("u1", "2", "n1"))
	node := s.Node("n1")
	s.free()
	s.remove(node)
	if _, any := s.Snapshot().MostAvailable(&binding.Class{Name: "A"}); any {
		t.Fatal("the node is gone")
	}
	w := s.Wait(NodeKey("n1"))
	s.set(node.DeepCopy())
	if most, any := s.Snapshot().MostAvailable(&binding.Class{Name: "A"}); !any || most != 70 {
		t.Errorf("%d, %v: the node is back and nobody sees it", most, any)
	}
	select {
	case <-w.C:
	default:
		t.Error("who waits for the node is not told")
	}
}

// TestSettledTwice: each volume of a claim has its own grace, and all of them end.
func TestSettledTwice(t *testing.T) {
	l := newLedger(time.Minute, newPlaces(newAtlas()))
	now := time.Unix(1, 0)
	l.setNode("n1", nodeLabels("n1"))
	l.setNode("n2", nodeLabels("n2"))
	offer(l, capacityOf("A", "n1", "", volume.Unnumbered, 100, "1"))
	offer(l, capacityOf("A", "n2", "", volume.Unnumbered, 100, "1"))
	c := selected("A", "n1")
	l.setClaim(c)
	v := volumeFacts{name: "v1", claimUID: "c", bytes: 30, allocation: volume.Unnumbered}
	l.setVolume(v)
	v.claimUID = ""
	l.setVolume(v) // given back
	c.selected, c.version = "", "11"
	l.setClaim(c)
	c.selected, c.version = "n2", "12"
	l.setClaim(c)
	l.setVolume(volumeFacts{name: "v2", claimUID: "c", bytes: 30, allocation: volume.Unnumbered})
	l.schedule(now)
	l.expire(now.Add(time.Hour))
	if got := free(l, "A", "n1"); got[0] != 100 {
		t.Errorf("%v free on n1 after all graces, want 100", got)
	}
}

// TestLimitsForget: no trace is kept of a node that is gone.
func TestLimitsForget(t *testing.T) {
	s := newStores(t)
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(3))}}}}}
	s.set(n)
	s.remove(s.Node("n1"))
	s.set(n.DeepCopy()) // an update that was on its way
	s.remove(n)
	s.clock.Step(time.Hour)
	s.expire()
	if len(s.limits.seen) > 0 {
		t.Errorf("kept: %v", s.limits.seen)
	}
}

// TestPodReplaced: a relist that missed a deletion tells of it as an update.
func TestPodReplaced(t *testing.T) {
	s := newStores(t)
	w := s.Wait(PodKey("default/p"))
	pod := func(uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: types.UID(uid)}}
	}
	h := handler(s.observePod, sameObject) // as New registers it
	h.OnAdd(pod("1"), false)
	<-w.C
	h.OnUpdate(pod("1"), pod("2")) // a relist that missed the deletion
	select {
	case <-w.C:
	default:
		t.Error("a pod was replaced by a namesake and who waits for it is not told")
	}
}

// TestUncertainReservationEnds: a reservation that may have been written ends with its grace,
// whatever else ends meanwhile.
func TestUncertainReservationEnds(t *testing.T) {
	l := newLedger(time.Minute, newPlaces(newAtlas()))
	now := time.Unix(1, 0)
	l.setNode("n1", nodeLabels("n1"))
	offer(l, capacityOf("A", "n1", "P", 5, 100, "1"))
	l.reserve(claimFacts{uid: "c", class: "A", bytes: 30, version: "1"}, "n1", "pod")
	l.uncertain("c")
	l.release("c", "pod", now)
	// Somebody binds the claim to a volume of his, and takes it away again.
	l.setVolume(volumeFacts{name: "v", claimUID: "c", bytes: 30, allocation: volume.Unnumbered})
	l.deleteVolume("v")
	l.schedule(now)
	l.expire(now.Add(time.Hour))
	if got := free(l, "A", "n1"); got[0] != 100 {
		t.Errorf("%v free an hour later, want 100: nobody wants the reservation", got)
	}
}
