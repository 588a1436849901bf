package plugin

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestUndo: a volume that was reserved in vain is free again, unless another hand
// is on it; a selected node stays.
func TestUndo(t *testing.T) {
	cases := map[string]struct {
		reason string
		// before runs when both writes have arrived and PreBind waits.
		before func(cy *cycle)
		// person reserved the volume for the claim by name.
		person   bool
		wantFree bool
	}{
		"given up":       {reason: "nobody has touched it", before: func(*cycle) {}, wantFree: true},
		"binding begun":  {reason: "the PV controller has its hand on it", before: func(cy *cycle) { pv := cy.Volume("vol"); pv.Status.Phase = corev1.VolumeBound; cy.Put(pv) }},
		"volume deleted": {reason: "there is nothing to give back", before: func(cy *cycle) { cy.Delete(cy.Volume("vol")) }, wantFree: true},
		"another pod's": {reason: "a pod of the same claim counts on it", before: func(cy *cycle) {
			second, _ := cy.judge(fakeapi.Pod("second", "sta"))
			if s := second.reserve("n1"); !s.IsSuccess() {
				t.Error(s)
			}
		}},
		"a person's": {reason: "who reserved it by hand keeps it reserved", person: true, before: func(*cycle) {}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := fakeapi.Pod("web", "dyn", "sta")
			pv := fakeapi.PV("vol", "local", "2Gi", "n1")
			if tc.person {
				pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "sta"}
			}
			c := newCluster(t, fakeapi.Node("n1"), fakeapi.Driver(driverName), fakeapi.Class("fast", driverName), fakeapi.Capacity("fast", "n1", "8Gi", 5),
				fakeapi.Class("local", "kubernetes.io/no-provisioner"), pv, fakeapi.PVC("dyn", "fast", "6Gi"), fakeapi.PVC("sta", "local", "1Gi"), pod)
			cy, _ := c.start(t.Context()).judge(pod)
			if s := cy.reserve("n1"); !s.IsSuccess() {
				t.Fatal(s)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			failed := make(chan struct{})
			go func() {
				defer close(failed)
				if s := cy.bind(ctx, "n1"); s.IsSuccess() {
					t.Error("PreBind succeeded")
				}
			}()
			cy.seen(func() bool {
				claim, pv := cy.plugin.cache.ClaimByKey("default/dyn"), cy.plugin.cache.Volume("vol")
				return claim.Annotations[volume.AnnSelectedNode] == "n1" && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != ""
			})
			tc.before(cy)
			cancel(errors.New("preempted"))
			<-failed
			cy.unreserve()
			if got := c.Claim("dyn").Annotations[volume.AnnSelectedNode]; got != "n1" {
				t.Errorf("the selected node was taken back: %q", got)
			}
			if _, err := c.Client.Tracker().Get(fakeapi.ResourceOf(pv), "", "vol"); err != nil {
				return
			}
			now := c.Volume("vol")
			if free := now.Spec.ClaimRef == nil; free != tc.wantFree {
				t.Errorf("%s: claimRef %v", tc.reason, now.Spec.ClaimRef)
			}
			if _, marked := now.Annotations[volume.AnnBoundByController]; tc.wantFree && marked {
				t.Error("the annotation of the reservation stays")
			}
			if !tc.wantFree {
				return
			}
			// Another pod can have it.
			rival := fakeapi.Pod("rival", "sta")
			cy.seen(func() bool { _, refused := cy.judge(rival); return len(refused) == 0 })
		})
	}
}

// TestLastChoice: a node whose driver gave the claim back is taken only when no
// other has room.
func TestLastChoice(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	claim := fakeapi.PVC("a", "fast", "6Gi")
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, "n1")
	r := dynamicCluster(t, claim, pod).start(t.Context())
	r.seen(func() bool { _, refused := r.judge(pod); return len(refused) == 1 })
	r.Put(fakeapi.PVC("a", "fast", "6Gi"))
	want := map[string]string{"n1": notEnough + "claim default/a asks 6 GiB; the driver refused it here lately"}
	var refused map[string]string
	r.seen(func() bool {
		_, refused = r.judge(pod)
		_, elsewhere := refused["n2"]
		return !elsewhere
	})
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Fatalf("n2 has room: (-want +got)\n%s", diff)
	}
	// n2 fills up: n1 is better than nothing.
	r.Put(fakeapi.Capacity("fast", "n2", "1Gi", 6))
	r.seen(func() bool { _, refused = r.judge(pod); _, full := refused["n2"]; return full })
	if _, refused := refused["n1"]; refused {
		t.Error("the last choice is no choice")
	}
	// n2 has room again and n1 counted again: both are choices.
	r.Put(fakeapi.Capacity("fast", "n2", "20Gi", 7))
	r.Put(fakeapi.Capacity("fast", "n1", "8Gi", 6))
	r.seen(func() bool { _, refused = r.judge(pod); return len(refused) == 0 })
}
