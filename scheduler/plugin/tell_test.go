package plugin

import (
	"testing"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestLongWaitIsTold: the pod hears once of each thing that it has waited for
// long, and of nothing that came in time.
func TestLongWaitIsTold(t *testing.T) {
	cy := ready(t)
	clock := testingclock.NewFakeClock(time.Now())
	cy.rebind(func(o *binder.Options) { o.Clock = clock })
	result := make(chan *fwk.Status, 1)
	go func() { result <- cy.bind(t.Context(), "n1") }()
	// pass lets the time run out for what is awaited, and told is the next event.
	pass := func(d time.Duration) {
		t.Helper()
		cy.seen(clock.HasWaiters)
		clock.Step(d)
	}
	told := func(want string) {
		t.Helper()
		select {
		case got := <-cy.events.Events:
			if got != want {
				t.Fatalf("told %q, want %q", got, want)
			}
		case <-time.After(eventually):
			t.Fatalf("the pod is not told %q", want)
		}
	}
	binding := "Normal WaitForBinding claim default/sta: waiting for the PV controller to bind it to volume vol; kube-controller-manager does this"
	provisioning := "Normal WaitForProvisioning claim default/dyn: waiting for its volume to be provisioned on node n1; the claim's own events tell what its provisioner does"
	cy.seen(func() bool {
		return cy.plugin.cache.Volume("vol").Spec.ClaimRef != nil && cy.plugin.cache.ClaimByKey("default/dyn").Annotations[volume.AnnSelectedNode] == "n1"
	})
	// What is awaited first may still be the sight of the own writes.
	var first string
	cy.seen(func() bool {
		clock.Step(binder.TellAfter)
		select {
		case first = <-cy.events.Events:
		default:
		}
		return first == binding
	})
	// Another event of the same objects is no other wait.
	pv := cy.Volume("vol")
	pv.Labels = map[string]string{"touched": "yes"}
	cy.Put(pv)
	cy.seen(func() bool { return cy.plugin.cache.Volume("vol").Labels["touched"] == "yes" })
	clock.Step(2 * binder.TellAfter)

	cy.Put(fakeapi.BoundTo(cy.Claim("sta"), "vol"))
	pass(binder.TellAfter - time.Second)
	clock.Step(time.Second)
	told(provisioning)
	clock.Step(binder.TellAfter)

	pvc := cy.Claim("dyn")
	cy.Put(fakeapi.Provisioned(pvc, 100))
	cy.Put(fakeapi.BoundTo(pvc, fakeapi.Provisioned(pvc, 100).Name))
	if s := <-result; !s.IsSuccess() {
		t.Fatal(s)
	}
	if n := len(cy.events.Events); n != 0 {
		t.Errorf("the pod is told %q too", <-cy.events.Events)
	}
	if clock.HasWaiters() {
		t.Error("a timer runs on after PreBind")
	}
}
