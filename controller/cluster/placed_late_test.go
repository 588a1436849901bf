package cluster

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/volume"
)

// TestClassComesLate: a claim gets the default class after the pod was looked at.
func TestClassComesLate(t *testing.T) {
	classless := makeClaim("data", gi, late)
	classless.Spec.StorageClassName = nil
	w := newPlacedWorld(t, classless, makePlaced("data"))
	if again := w.mustLook(); again != 0 || len(w.became()) != 0 {
		t.Fatalf("setup: %v %v", again, w.became())
	}
	old := w.claim("data")
	update(w.world, &corev1.PersistentVolumeClaim{ObjectMeta: old.ObjectMeta}, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("later") })
	if !claimComesBack().Update(event.UpdateEvent{ObjectOld: old, ObjectNew: w.claim("data")}) {
		t.Error("the claim's new class brings no look at the pod")
	}
	if w.mustLook(); w.became()["data"] != "node a" {
		t.Errorf("setup: a look would not have helped: %v", w.became())
	}
}

// TestNodeLabelled: a pod is refused for its node's labels, which come later.
func TestNodeLabelled(t *testing.T) {
	class := makeClass("zoned", storagev1.VolumeBindingWaitForFirstConsumer)
	class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: volume.LabelZone, Values: []string{"z"}}}}}
	claim := makeClaim("data", gi, late)
	*claim.Spec.StorageClassName = "zoned"
	w := newPlacedWorld(t, class, claim, makePlaced("data"))
	w.mustLook()
	if len(w.became()) != 0 {
		t.Fatalf("setup: %v", w.became())
	}
	node := &corev1.Node{}
	if err := w.api.Get(context.Background(), types.NamespacedName{Name: "a"}, node); err != nil {
		t.Fatal(err)
	}
	update(w.world, node, func(n *corev1.Node) { n.Labels[volume.LabelZone] = "z" })
	if w.mustLook(); w.became()["data"] != "node a" {
		t.Errorf("setup: a look would not have helped: %v", w.became())
	}
}

// TestClaimOfTwoPods: two pods of one claim, on two nodes, before the cache shows
// the first reservation, get it one volume.
func TestClaimOfTwoPods(t *testing.T) {
	second := makePlaced("data")
	second.Name, second.UID, second.Spec.NodeName = "web2", "uid-web2", "b"
	node, csiNode := makeNode("b")
	w := newPlacedWorld(t, makeClaim("data", gi, byHand), makeFree("pv-a", "a", gi), makeFree("pv-b", "b", gi), makePlaced("data"), second, node, csiNode)
	w.mustLook()
	if _, err := w.p.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web2"}}); err != nil {
		t.Fatal(err)
	}
	if got := w.became()["data"]; got != "volume pv-a" {
		t.Errorf("reserved for one claim: %s", got)
	}
}
