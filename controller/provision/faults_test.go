package provision

import (
	"context"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/volume"
)

// what is done to the claim at the moment of the fault.
type meddling struct {
	reason string
	do     func(t *testing.T, w *world)
	// wanted: the claim still wants its volume here, so that it must have it.
	wanted bool
	// other is the UID of a claim that must be served beside, if any.
	other types.UID
}

const otherUID = types.UID("22222222-0000-4000-8000-000000000002")

func meddlings() map[string]meddling {
	ctx := context.Background()
	claimOf := func(t *testing.T, w *world) *corev1.PersistentVolumeClaim {
		claim := &corev1.PersistentVolumeClaim{}
		if err := w.api.Get(ctx, types.NamespacedName{Namespace: "default", Name: "data"}, claim); err != nil {
			t.Fatal(err)
		}
		return claim
	}
	remove := func(t *testing.T, w *world) {
		if err := w.api.Delete(ctx, claimOf(t, w)); err != nil {
			t.Fatal(err)
		}
	}
	selected := func(node string) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			claim := claimOf(t, w)
			if node == "" {
				delete(claim.Annotations, volume.AnnSelectedNode)
			} else {
				claim.Annotations[volume.AnnSelectedNode] = node
			}
			if err := w.api.Update(ctx, claim); err != nil {
				t.Fatal(err)
			}
		}
	}
	return map[string]meddling{
		"left alone": {reason: "the claim gets its volume whatever failed", wanted: true, do: func(*testing.T, *world) {}},
		"deleted":    {reason: "no volume outlives its claim", do: remove},
		"deselected": {reason: "no volume stays where the claim is not wanted", do: selected("")},
		"moved":      {reason: "the other node makes the claim's volume", do: selected("n2")},
		"made anew": {reason: "a claim of the same name is another claim", other: otherUID, do: func(t *testing.T, w *world) {
			remove(t, w)
			again := makeClaim(func(c *corev1.PersistentVolumeClaim) { c.UID = otherUID })
			if err := w.api.Create(ctx, again); err != nil {
				t.Fatal(err)
			}
		}},
		"class deleted": {reason: "without its class the claim waits, and leaves nothing", do: func(t *testing.T, w *world) {
			if err := w.api.Delete(ctx, makeClass()); err != nil {
				t.Fatal(err)
			}
		}},
	}
}

// TestEveryFault fails, and crashes at, every single step of a provisioning, in
// a world that changes at that moment, and looks at what is left in the end.
func TestEveryFault(t *testing.T) {
	for name, m := range meddlings() {
		for _, mode := range csitest.Modes() {
			for _, code := range []codes.Code{codes.Unavailable, codes.Internal} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, mode, code), func(t *testing.T) {
					for at := 1; oneFault(t, m, mode, code, at); at++ {
					}
				})
			}
		}
	}
}

// oneFault reports whether there was a step at to disturb.
func oneFault(t *testing.T, m meddling, mode csitest.Mode, code codes.Code, at int) bool {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.driver.Fault = code
	w.steps.At, w.steps.Mode = at, mode
	early := false
	w.steps.OnFault = func() {
		early = len(w.volumes()) == 0
		m.do(t, w)
	}
	w.settle(keyOf(makeClaim()))
	if !w.steps.Hit() {
		return false
	}
	w.settle(keyOf(makeClaim()))
	if m.other != "" {
		w.settle(Key{NamespacedName: keyOf(makeClaim()).NamespacedName, UID: m.other})
	}
	where := fmt.Sprintf("%s; disturbed at %d of %v", m.reason, at, w.steps.Trail())

	pvs := make(map[string]string)
	for _, pv := range w.volumes() {
		pvs[pv.Name] = pv.Spec.CSI.VolumeHandle
	}
	volumes := make(map[string]string)
	for _, v := range w.driver.Volumes() {
		volumes[v.Name] = v.ID
	}
	if got := fmt.Sprint(volumes); got != fmt.Sprint(pvs) {
		t.Errorf("%s: volumes %v, but PersistentVolumes %v", where, got, pvs)
	}
	if got := w.records(); len(got) != 0 {
		t.Errorf("%s: records are left: %v", where, got)
	}
	mine := volume.PVName(string(testUID))
	if m.wanted && (len(pvs) != 1 || pvs[mine] == "") {
		t.Errorf("%s: want one PersistentVolume %s, got %v", where, mine, pvs)
	}
	if !m.wanted && early && pvs[mine] != "" {
		t.Errorf("%s: the claim did not want a PersistentVolume any more, and got one", where)
	}
	if m.wanted && w.driver.EverMade() != 1 {
		t.Errorf("%s: %d volumes were made for one claim", where, w.driver.EverMade())
	}
	if m.other != "" && pvs[volume.PVName(string(m.other))] == "" {
		t.Errorf("%s: the new claim has no PersistentVolume: %v", where, pvs)
	}
	return true
}

// TestHangsWhileDeleted: CreateVolume does not come to an end for a long time,
// and the claim is deleted meanwhile.
func TestHangsWhileDeleted(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.start()
	key := keyOf(makeClaim())
	hanging := true
	w.driver.Refuse = func(string, int64) error {
		if hanging {
			return context.DeadlineExceeded
		}
		return nil
	}
	for range 3 {
		if _, err := w.r.Reconcile(context.Background(), key); err == nil {
			t.Fatal("a call without an end must come back")
		}
	}
	if err := w.api.Delete(context.Background(), makeClaim()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.Reconcile(context.Background(), key); err == nil {
		t.Fatal("the deleted claim's call must come back too")
	}
	if len(w.records()) != 1 {
		t.Fatal("the record must outlive the claim")
	}
	// The driver comes back; it had made the volume after all.
	hanging = false
	w.driver.Add(volume.PVName(string(testUID)), volume.GiB)
	w.settle(key)
	if got := w.driver.Volumes(); len(got) != 0 {
		t.Errorf("volumes are left: %v", got)
	}
	if len(w.records()) != 0 || len(w.volumes()) != 0 {
		t.Errorf("records %v, PersistentVolumes %v are left", w.records(), w.volumes())
	}
}

// TestWantedAgainWhileUndone: the claim is deselected while its volume is being
// made, and selected again while the volume is being deleted. The driver comes
// to the deletion late: a CreateVolume in between would find the old volume.
func TestWantedAgainWhileUndone(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.start()
	choose := func(node string) {
		claim := w.claim()
		claim.Annotations[volume.AnnSelectedNode] = node
		if err := w.api.Update(context.Background(), claim); err != nil {
			t.Fatal(err)
		}
	}
	late := &lateDriver{Driver: w.driver}
	w.r.driver = late
	w.steps.At, w.steps.Mode = 9, csitest.FailAfter // CreateVolume
	w.steps.OnFault = func() { choose("n2") }
	for len(late.pending) == 0 {
		if _, err := w.r.Reconcile(context.Background(), keyOf(makeClaim())); err == nil {
			t.Fatalf("no deletion in %v", w.steps.Trail())
		}
	}
	choose(testNode)
	w.settle(keyOf(makeClaim()))
	if len(w.volumes()) != 1 || len(w.driver.Volumes()) != 1 || len(w.records()) != 0 {
		t.Errorf("PersistentVolumes %d, volumes %v, records %v; steps %v", len(w.volumes()), w.driver.Volumes(), w.records(), w.steps.Trail())
	}
}

// lateDriver does not finish its first deletion in time; it finishes it during
// the next call.
type lateDriver struct {
	Driver
	pending string
	late    bool
}

func (d *lateDriver) CreateVolume(ctx context.Context, in *csi.CreateVolumeRequest, _ ...grpc.CallOption) (*csi.CreateVolumeResponse, error) {
	out, err := d.Driver.CreateVolume(ctx, in)
	if d.pending != "" {
		if _, err := d.Driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: d.pending}); err != nil {
			return nil, err
		}
		d.pending = ""
	}
	return out, err
}

func (d *lateDriver) DeleteVolume(ctx context.Context, in *csi.DeleteVolumeRequest, _ ...grpc.CallOption) (*csi.DeleteVolumeResponse, error) {
	if !d.late {
		d.late, d.pending = true, in.GetVolumeId()
		return nil, status.Error(codes.DeadlineExceeded, "late")
	}
	d.pending = ""
	return d.Driver.DeleteVolume(ctx, in)
}

// TestReclaimedMeanwhile: the process ended after it had made the
// PersistentVolume and before it dropped the record. The claim is deleted, and
// controller/reclaim has deleted the volume, but not yet the object.
func TestReclaimedMeanwhile(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.settle(keyOf(makeClaim()))
	request, err := buildRequest(requestInput{claim: makeClaim(), class: makeClass()})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.r.records.Put(Start(keyOf(makeClaim()).NamespacedName, testUID, request)); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := w.api.Delete(ctx, makeClaim()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: w.driver.Volumes()[0].ID}); err != nil {
		t.Fatal(err)
	}
	w.settle(keyOf(makeClaim()))
	if len(w.driver.Volumes()) != 0 || len(w.records()) != 0 {
		t.Errorf("volumes %v, records %v", w.driver.Volumes(), w.records())
	}
}

// TestDeniedVolume: the volume was made, its PersistentVolume was not, and then
// the driver denies it. Only a deletion makes sure that nothing is left.
func TestDeniedVolume(t *testing.T) {
	for _, code := range []codes.Code{codes.ResourceExhausted, codes.InvalidArgument} {
		t.Run(code.String(), func(t *testing.T) {
			w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
			request, err := buildRequest(requestInput{claim: makeClaim(), class: makeClass()})
			if err != nil {
				t.Fatal(err)
			}
			w.start()
			id := w.driver.Add(volume.PVName(string(testUID)), volume.GiB)
			if err := w.r.records.Put(Start(keyOf(makeClaim()).NamespacedName, testUID, request).BecomeCreated(id)); err != nil {
				t.Fatal(err)
			}
			w.driver.Refuse = func(call string, _ int64) error {
				if call == "CreateVolume" {
					return status.Error(code, "denied")
				}
				return nil
			}
			w.settle(keyOf(makeClaim()))
			if len(w.driver.Volumes()) != 0 || len(w.records()) != 0 || len(w.volumes()) != 0 {
				t.Errorf("volumes %v, records %v", w.driver.Volumes(), w.records())
			}
		})
	}
}

// TestVolumeBeingDeleted: the claim's PersistentVolume was deleted before it
// was bound. The claim gets another volume, after the first is gone.
func TestVolumeBeingDeleted(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.settle(keyOf(makeClaim()))
	ctx := context.Background()
	pv := w.volumes()[0]
	if err := w.api.Delete(ctx, &pv); err != nil {
		t.Fatal(err)
	}
	request, err := buildRequest(requestInput{claim: makeClaim(), class: makeClass()})
	if err != nil {
		t.Fatal(err)
	}
	id := pv.Spec.CSI.VolumeHandle
	if err := w.r.records.Put(Start(keyOf(makeClaim()).NamespacedName, testUID, request).BecomeCreated(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.Reconcile(ctx, keyOf(makeClaim())); err == nil || len(w.records()) != 1 {
		t.Errorf("it is to be tried again: %v, records %v", err, w.records())
	}
	// controller/reclaim comes to it.
	if _, err := w.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Fatal(err)
	}
	pv = w.volumes()[0]
	pv.Finalizers = nil
	if err := w.api.Update(ctx, &pv); err != nil {
		t.Fatal(err)
	}
	if got := w.r.claimOf(ctx, &pv); len(got) != 1 || got[0] != keyOf(makeClaim()) {
		t.Errorf("the claim must come back when its PersistentVolume goes: %v", got)
	}
	w.settle(keyOf(makeClaim()))
	if len(w.volumes()) != 1 || len(w.driver.Volumes()) != 1 || len(w.records()) != 0 {
		t.Errorf("PersistentVolumes %d, volumes %v, records %v", len(w.volumes()), w.driver.Volumes(), w.records())
	}
}
