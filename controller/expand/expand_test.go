package expand

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/volume"
)

type world struct {
	t      *testing.T
	api    client.WithWatch
	driver *csitest.Driver
	steps  *csitest.Steps
	events *csitest.Events
	clock  *testclock.FakePassiveClock
	r      *Reconciler
	// labelled: the cache holds claims with the node's label only.
	labelled bool
}

func newWorld(t *testing.T, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) *world {
	t.Helper()
	w := &world{t: t, api: csitest.API(claim, pv), steps: &csitest.Steps{}, events: &csitest.Events{}}
	w.clock = testclock.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	w.driver = &csitest.Driver{Steps: w.steps, NodeExpansion: true}
	pv.Spec.CSI.VolumeHandle = w.driver.Add("pvc-1", gi)
	w.api = csitest.API(claim, pv)
	return w
}

func (w *world) start() {
	w.t.Helper()
	var err error
	cached := w.api
	if w.labelled {
		cached = csitest.Labelled(w.api)
	}
	w.r, err = New(Config{Scope: testScope(), Driver: w.driver, Clock: w.clock},
		csitest.Disturbed(cached, w.steps), csitest.Disturbed(w.api, w.steps), w.events)
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reconcile() (reconcile.Result, error) {
	return w.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "data"}})
}

func (w *world) settle() {
	w.t.Helper()
	for range 20 {
		if w.r == nil {
			w.start()
		}
		var err error
		if csitest.Survive(func() { _, err = w.reconcile() }) {
			w.r = nil
		} else if err == nil {
			return
		}
	}
	w.t.Fatalf("no end after 20 passes; steps: %v", w.steps.Trail())
}

func (w *world) objects() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	w.t.Helper()
	claim, pv := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	if err := w.api.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: "data"}, claim); err != nil {
		w.t.Fatal(err)
	}
	if err := w.api.Get(context.Background(), types.NamespacedName{Name: "pvc-1"}, pv); err != nil {
		w.t.Fatal(err)
	}
	return claim, pv
}

// node plays the node: it grows the filesystem and says so.
func (w *world) node() {
	w.t.Helper()
	claim, _ := w.objects()
	if !isNodePending(claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]) {
		w.t.Fatalf("not the node's turn: %v", claim.Status)
	}
	becomeGrown(claim, claim.Status.AllocatedResources.Storage().Value(), w.clock.Now())
	if err := w.api.Status().Update(context.Background(), claim); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) ask(size int64) {
	w.t.Helper()
	claim, _ := w.objects()
	claim.Spec.Resources.Requests = list(size)
	if err := w.api.Update(context.Background(), claim); err != nil {
		w.t.Fatal(err)
	}
}

// summary is the state of all that grows, in GiB.
type summary struct {
	Volume, PV, Has, Tried int64
	State                  corev1.ClaimResourceStatus
	Conditions             string
	Noted, NotRequired     bool
}

func (w *world) summary() summary {
	w.t.Helper()
	claim, pv := w.objects()
	s := sizesOf(claim, pv)
	out := summary{
		Volume: w.driver.Volumes()[0].Size / gi, PV: s.pv / gi, Has: s.has / gi, Tried: s.tried / gi,
		State:       claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage],
		NotRequired: claim.Annotations[volume.AnnNodeExpansionNotRequired] == "true",
	}
	_, out.Noted = pv.Annotations[volume.AnnPreResizeCapacity]
	var names []string
	for _, c := range claim.Status.Conditions {
		names = append(names, string(c.Type))
	}
	out.Conditions = strings.Join(names, " ")
	return out
}

func (w *world) want(reason string, want summary) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.summary()); diff != "" {
		w.t.Errorf("%s; steps %v (-want +got)\n%s", reason, w.steps.Trail(), diff)
	}
}

// TestEveryFault fails, and crashes at, every step of a growth, on the
// controller's side before and after the node's step.
func TestEveryFault(t *testing.T) {
	for _, nodeStep := range []bool{true, false} {
		for _, mode := range csitest.Modes() {
			for _, code := range []codes.Code{codes.Unavailable, codes.Internal} {
				t.Run(fmt.Sprintf("node step %t/%s/%s", nodeStep, mode, code), func(t *testing.T) {
					for at := 1; ; at++ {
						w := newWorld(t, makeClaim(3*gi, gi), makePV(gi))
						w.driver.NodeExpansion, w.driver.Fault = nodeStep, code
						w.steps.At, w.steps.Mode = at, mode
						w.settle()
						w.settle()
						if nodeStep {
							w.want("after the controller", summary{
								Volume: 3, PV: 3, Has: 1, Tried: 3,
								State: corev1.PersistentVolumeClaimNodeResizePending, Conditions: "FileSystemResizePending", Noted: true,
							})
							w.node()
							w.settle()
							w.settle()
						}
						w.want("in the end", summary{Volume: 3, PV: 3, Has: 3, Tried: 3, NotRequired: !nodeStep})
						if !w.steps.Hit() || t.Failed() {
							return
						}
					}
				})
			}
		}
	}
}

// TestRecover: the pool is too small for what is asked; the user asks for less.
func TestRecover(t *testing.T) {
	w := newWorld(t, makeClaim(9*gi, gi), makePV(gi))
	w.driver.Total = 5 * gi
	w.settle()
	w.want("refused", summary{
		Volume: 1, PV: 1, Has: 1, Tried: 9,
		State: corev1.PersistentVolumeClaimControllerResizeInfeasible, Conditions: "ControllerResizeError",
	})
	told := len(w.events.Told)
	w.settle()
	if len(w.events.Told) != told {
		t.Errorf("the same size is tried again at once: %q", w.events.Told)
	}
	w.ask(3 * gi)
	w.settle()
	w.want("lowered", summary{
		Volume: 3, PV: 3, Has: 1, Tried: 3,
		State: corev1.PersistentVolumeClaimNodeResizePending, Conditions: "FileSystemResizePending", Noted: true,
	})
	w.node()
	w.settle()
	w.want("done", summary{Volume: 3, PV: 3, Has: 3, Tried: 3})
}

// TestRefusedLater: the pool grows; the refused size is tried again after the
// interval.
func TestRefusedLater(t *testing.T) {
	w := newWorld(t, makeClaim(9*gi, gi), makePV(gi))
	w.driver.Total = 5 * gi
	w.settle()
	w.driver.Total = 20 * gi
	result, err := w.reconcile()
	if err != nil || result.RequeueAfter <= 0 {
		t.Errorf("the refused size rests: %v, %v", result, err)
	}
	w.clock.SetTime(w.clock.Now().Add(6 * time.Minute))
	w.settle()
	w.want("tried again", summary{
		Volume: 9, PV: 9, Has: 1, Tried: 9,
		State: corev1.PersistentVolumeClaimNodeResizePending, Conditions: "FileSystemResizePending", Noted: true,
	})
}

// TestNoRoomThenLess: a driver that says ResourceExhausted; the user may lower
// the request.
func TestNoRoomThenLess(t *testing.T) {
	w := newWorld(t, makeClaim(9*gi, gi), makePV(gi))
	w.driver.Refuse = func(_ string, size int64) error {
		if size > 5*gi {
			return status.Error(codes.ResourceExhausted, "pool is full")
		}
		return nil
	}
	w.start()
	if _, err := w.reconcile(); err == nil {
		t.Error("no room is to be tried again")
	}
	w.ask(2 * gi)
	w.settle()
	w.want("lowered", summary{
		Volume: 2, PV: 2, Has: 1, Tried: 2,
		State: corev1.PersistentVolumeClaimNodeResizePending, Conditions: "FileSystemResizePending", Noted: true,
	})
}

// TestUnknownEndThenLess: the call for 9 GiB ended unknown and had taken
// effect. Asking for less does not make the claim forget what it uses.
func TestUnknownEndThenLess(t *testing.T) {
	w := newWorld(t, makeClaim(9*gi, gi), makePV(gi))
	w.start()
	w.steps.At, w.steps.Mode = 4, csitest.FailAfter // the claim, its volume, the patch of status, the call
	w.driver.Fault = codes.DeadlineExceeded
	if _, err := w.reconcile(); err == nil {
		t.Fatalf("steps %v", w.steps.Trail())
	}
	w.ask(2 * gi)
	w.settle()
	w.want("finished", summary{
		Volume: 9, PV: 9, Has: 1, Tried: 9,
		State: corev1.PersistentVolumeClaimNodeResizePending, Conditions: "FileSystemResizePending", Noted: true,
	})
}

// TestMoreWhileNodeWorks: a second growth is asked for before the node has
// finished the first.
func TestMoreWhileNodeWorks(t *testing.T) {
	w := newWorld(t, makeClaim(2*gi, gi), makePV(gi))
	w.settle()
	w.ask(4 * gi)
	w.settle()
	w.want("the first goes first", summary{
		Volume: 2, PV: 2, Has: 1, Tried: 2,
		State: corev1.PersistentVolumeClaimNodeResizePending, Conditions: "FileSystemResizePending", Noted: true,
	})
	w.node()
	w.settle()
	w.node()
	w.settle()
	w.want("then the second", summary{Volume: 4, PV: 4, Has: 4, Tried: 4})
}

// TestNodeInfeasible: the two sides do not go round in circles.
func TestNodeInfeasible(t *testing.T) {
	w := newWorld(t, makeClaim(2*gi, gi), makePV(gi))
	w.settle()
	refuse := func() {
		claim, _ := w.objects()
		setTried(claim, 2*gi, corev1.PersistentVolumeClaimNodeResizeInfeasible)
		if err := w.api.Status().Update(context.Background(), claim); err != nil {
			t.Fatal(err)
		}
	}
	refuse()
	w.settle()
	refuse()
	result, err := w.reconcile()
	if err != nil || result.RequeueAfter <= 0 {
		t.Errorf("the second refusal rests: %v, %v", result, err)
	}
}

// TestUnlabelledClaim: what the cache of labelled claims lacks grows too, once
// its PersistentVolume brings it up; a claim that is gone ends quietly.
func TestUnlabelledClaim(t *testing.T) {
	w := newWorld(t, makeClaim(2*gi, gi), makePV(gi))
	w.labelled = true
	w.settle()
	w.node()
	w.settle()
	w.want("grown", summary{Volume: 2, PV: 2, Has: 2, Tried: 2})
	claim, _ := w.objects()
	if err := w.api.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if result, err := w.reconcile(); err != nil || result.RequeueAfter != 0 {
		t.Errorf("a claim that is gone: %v, %v", result, err)
	}
}

// TestConditionsOfOthers are kept.
func TestConditionsOfOthers(t *testing.T) {
	claim := makeClaim(2*gi, gi)
	claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: "Odd", Status: corev1.ConditionTrue}}
	w := newWorld(t, claim, makePV(gi))
	w.settle()
	if got := w.summary().Conditions; got != "Odd FileSystemResizePending" {
		t.Errorf("conditions %q", got)
	}
}

func TestPredicate(t *testing.T) {
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		want   bool
	}{
		"served":    {"most claims, most of the time", makeClaim(gi, gi), false},
		"more":      {"asks for more", makeClaim(2*gi, gi), true},
		"node":      {"the node's answer ends it", makeClaim(gi, gi, tried(2*gi, corev1.PersistentVolumeClaimNodeResizePending)), true},
		"not bound": {"nothing to grow", makeClaim(2*gi, 0, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := growing(tc.claim); got != tc.want {
				t.Errorf("%s: got %t", tc.reason, got)
			}
		})
	}
}
