package provision

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/volume"
)

// TestUnlabelledClaim: an agent that watched every claim crashes at every step of
// a provisioning, and comes back with a cache that lacks the claim. What was begun
// is finished, and not undone; what was not begun waits for the label.
func TestUnlabelledClaim(t *testing.T) {
	for _, mode := range []csitest.Mode{csitest.CrashBefore, csitest.CrashAfter} {
		t.Run(mode.String(), func(t *testing.T) {
			for at := 1; ; at++ {
				w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
				w.steps.At, w.steps.Mode = at, mode
				begun := false
				w.steps.OnFault = func() {
					begun = len(w.records())+len(w.volumes()) > 0
					w.labelled = true
				}
				w.settle(keyOf(makeClaim()))
				if !w.steps.Hit() {
					return
				}
				if got := len(w.volumes()) == 1; got != begun {
					t.Errorf("step %d: begun %t, has a volume %t; steps %v", at, begun, got, w.steps.Trail())
				}
				w.label(makeClaim())
				w.settle(keyOf(makeClaim()))
				if pvs, made, records := w.volumes(), w.driver.Volumes(), w.records(); len(pvs) != 1 || len(made) != 1 || len(records) != 0 {
					t.Errorf("step %d: %d PersistentVolumes, %d volumes, %d records; steps %v", at, len(pvs), len(made), len(records), w.steps.Trail())
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

// TestGoneUnlabelledClaim: a record of a claim that is gone is undone, also where
// the cache would not have held the claim.
func TestGoneUnlabelledClaim(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.labelled = true
	w.label(makeClaim())
	// The volume is made, the answer lost, and the claim deleted meanwhile.
	made := false
	w.steps.Mode = csitest.CrashAfter
	w.steps.OnFault = func() {
		made = len(w.driver.Volumes()) == 1
		if err := w.api.Delete(t.Context(), makeClaim()); err != nil {
			t.Fatal(err)
		}
	}
	w.steps.At = stepOfCreate(t)
	w.settle(keyOf(makeClaim()))
	if !made {
		t.Fatalf("no volume was made: this test proves nothing; steps %v", w.steps.Trail())
	}
	if pvs, left, records := w.volumes(), w.driver.Volumes(), w.records(); len(pvs)+len(left)+len(records) != 0 {
		t.Errorf("%d PersistentVolumes, %d volumes, %d records; steps %v", len(pvs), len(left), len(records), w.steps.Trail())
	}
}

// stepOfCreate is the number of the step that calls CreateVolume.
func stepOfCreate(t *testing.T) int {
	t.Helper()
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.settle(keyOf(makeClaim()))
	i := slices.IndexFunc(w.steps.Trail(), func(name string) bool { return strings.Contains(name, "CreateVolume") })
	if i < 0 {
		t.Fatalf("no CreateVolume in %v", w.steps.Trail())
	}
	return i + 1
}

// label does what the policy does.
func (w *world) label(of *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(of), claim); err != nil {
		w.t.Fatal(err)
	}
	claim.Labels = map[string]string{volume.LabelNode: testNode}
	if err := w.api.Update(w.t.Context(), claim); err != nil {
		w.t.Fatal(err)
	}
}
