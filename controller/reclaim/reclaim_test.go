package reclaim

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

const handle = csitest.Pool + "/pvc-1"

func testScope() scope.Scope { return scope.Scope{Driver: volume.DriverName, Node: "n1"} }

type change func(*corev1.PersistentVolume)

func phase(p corev1.PersistentVolumePhase) change {
	return func(pv *corev1.PersistentVolume) { pv.Status.Phase = p }
}

func policy(p corev1.PersistentVolumeReclaimPolicy) change {
	return func(pv *corev1.PersistentVolume) { pv.Spec.PersistentVolumeReclaimPolicy = p }
}

func unheld(pv *corev1.PersistentVolume) { pv.Finalizers = nil }

func deleting(pv *corev1.PersistentVolume) {
	pv.DeletionTimestamp = &metav1.Time{Time: metav1.Now().Time}
	pv.Finalizers = append(pv.Finalizers, "kubernetes.io/pv-protection")
}

func makePV(changes ...change) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-1", UID: "pv-1", Finalizers: []string{volume.FinalizerProvisioner},
			Labels:      map[string]string{volume.LabelNode: "n1"},
			Annotations: map[string]string{volume.AnnProvisionedBy: volume.DriverName},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "claim-1"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: volume.DriverName, VolumeHandle: handle},
			},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
	}
	for _, c := range changes {
		c(pv)
	}
	return pv
}

func makeClaim(uid, volumeName string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: types.UID(uid)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volumeName},
	}
}

func TestDecide(t *testing.T) {
	cases := map[string]struct {
		reason string
		pv     *corev1.PersistentVolume
		want   Action
	}{
		"released":           {"the claim is gone", makePV(), Delete},
		"released, unheld":   {"made by a provisioner without finalizers", makePV(unheld), Delete},
		"bound":              {"a claim has it", makePV(phase(corev1.VolumeBound)), Nothing},
		"bound, unheld":      {"the policy was changed to Delete later", makePV(phase(corev1.VolumeBound), unheld), Protect},
		"bound, deleting":    {"a bound volume is never deleted", makePV(phase(corev1.VolumeBound), deleting), Nothing},
		"released, deleting": {"the object goes after the volume", makePV(deleting), Delete},
		"available":          {"the PV controller has not bound it yet", makePV(phase(corev1.VolumeAvailable)), Nothing},
		"available, deleting": {
			"the user deleted a volume that was never used",
			makePV(phase(corev1.VolumeAvailable), deleting), Delete,
		},
		"deleted":           {"the volume is gone already, others hold the object", makePV(unheld, deleting), Nothing},
		"failed":            {"an earlier reclaimer gave up; an operator decides", makePV(phase(corev1.VolumeFailed)), Nothing},
		"retain":            {"the volume stays", makePV(policy(corev1.PersistentVolumeReclaimRetain)), Unprotect},
		"retain, deleting":  {"so does it when the object goes", makePV(policy(corev1.PersistentVolumeReclaimRetain), deleting), Unprotect},
		"retain, unheld":    {"nothing to do", makePV(policy(corev1.PersistentVolumeReclaimRetain), unheld), Nothing},
		"other driver":      {"not ours", makePV(func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" }), Nothing},
		"other node":        {"not ours", makePV(func(pv *corev1.PersistentVolume) { pv.Labels[volume.LabelNode] = "n2" }), Nothing},
		"made by hand":      {"only what was provisioned is deleted", makePV(func(pv *corev1.PersistentVolume) { pv.Annotations = nil }), Nothing},
		"no CSI volume":     {"not ours", makePV(func(pv *corev1.PersistentVolume) { pv.Spec.CSI = nil }), Nothing},
		"recycle, released": {"an obsolete policy deletes nothing", makePV(policy(corev1.PersistentVolumeReclaimRecycle), unheld), Nothing},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decide(testScope(), tc.pv); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

func TestStillNamed(t *testing.T) {
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		want   bool
	}{
		"none":         {"the claim is gone", nil, false},
		"another":      {"a claim of the name, but not the claim", makeClaim("claim-2", "pvc-1"), false},
		"unbound":      {"it names no volume, so nothing was mounted", makeClaim("claim-1", ""), false},
		"still bound":  {"its data would be lost", makeClaim("claim-1", "pvc-1"), true},
		"other volume": {"it is bound elsewhere", makeClaim("claim-1", "pvc-2"), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := stillNamed(makePV(), tc.claim); got != tc.want {
				t.Errorf("%s: got %t", tc.reason, got)
			}
		})
	}
}

type world struct {
	t      *testing.T
	api    client.WithWatch
	driver *csitest.Driver
	steps  *csitest.Steps
	events *csitest.Events
	r      *Reconciler
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, api: csitest.API(objects...), steps: &csitest.Steps{}, events: &csitest.Events{}}
	w.driver = &csitest.Driver{Steps: w.steps}
	w.driver.Add("pvc-1", volume.GiB)
	return w
}

func (w *world) start() {
	w.t.Helper()
	api := csitest.Disturbed(w.api, w.steps)
	var err error
	if w.r, err = New(Config{Scope: testScope(), Driver: w.driver}, api, api, w.events); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reconcile() error {
	_, err := w.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "pvc-1"}})
	return err
}

func (w *world) settle() {
	w.t.Helper()
	for range 20 {
		if w.r == nil {
			w.start()
		}
		var err error
		if csitest.Survive(func() { err = w.reconcile() }) {
			w.r = nil
		} else if err == nil {
			return
		}
	}
	w.t.Fatalf("no end after 20 passes; steps: %v", w.steps.Trail())
}

// pv returns the PersistentVolume, or nil.
func (w *world) pv() *corev1.PersistentVolume {
	w.t.Helper()
	pv := &corev1.PersistentVolume{}
	err := w.api.Get(context.Background(), types.NamespacedName{Name: "pvc-1"}, pv)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return pv
}

// TestEveryFault fails, and crashes at, every step of a deletion. In the end
// volume and object are gone, and at no moment was there a volume without an
// object.
func TestEveryFault(t *testing.T) {
	starts := map[string][]change{"released": nil, "deleted by the user": {deleting}, "made without finalizer": {unheld}}
	for name, changes := range starts {
		for _, mode := range csitest.Modes() {
			for _, code := range []codes.Code{codes.Unavailable, codes.FailedPrecondition} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, mode, code), func(t *testing.T) {
					for at := 1; ; at++ {
						w := newWorld(t, makePV(changes...))
						w.driver.Fault = code
						w.steps.At, w.steps.Mode = at, mode
						orphan := false
						w.steps.OnFault = func() { orphan = w.pv() == nil && len(w.driver.Volumes()) > 0 }
						w.settle()
						if !w.steps.Hit() {
							return
						}
						w.settle()
						pv := w.pv()
						// Kubernetes' own finalizer is Kubernetes' to remove.
						gone := pv == nil || pv.DeletionTimestamp != nil && len(pv.Finalizers) == 1 && pv.Finalizers[0] == "kubernetes.io/pv-protection"
						if !gone || len(w.driver.Volumes()) != 0 || orphan {
							t.Errorf("disturbed at %d of %v: PersistentVolume %v, volumes %v, orphan %t", at, w.steps.Trail(), pv, w.driver.Volumes(), orphan)
						}
					}
				})
			}
		}
	}
}

// TestConflict: Kubernetes takes its own finalizer off in between.
func TestConflict(t *testing.T) {
	w := newWorld(t, makePV(func(pv *corev1.PersistentVolume) {
		pv.Finalizers = append(pv.Finalizers, "kubernetes.io/pv-protection")
	}))
	w.start()
	w.r.client = &meddler{Client: w.api}
	if err := w.reconcile(); err != nil {
		t.Errorf("a conflict is no failure: %v", err)
	}
	if w.pv() != nil || len(w.driver.Volumes()) != 0 {
		t.Errorf("left: %v, volumes %v", w.pv(), w.driver.Volumes())
	}
}

// meddler changes the object right before the first patch.
type meddler struct {
	client.Client
	done bool
}

func (m *meddler) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if !m.done {
		m.done = true
		now := &corev1.PersistentVolume{}
		if err := m.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return err
		}
		now.Finalizers = []string{volume.FinalizerProvisioner}
		if err := m.Update(ctx, now); err != nil {
			return err
		}
	}
	return m.Client.Patch(ctx, o, p, opts...)
}

func TestRetain(t *testing.T) {
	w := newWorld(t, makePV(policy(corev1.PersistentVolumeReclaimRetain)))
	w.settle()
	if pv := w.pv(); pv == nil || len(pv.Finalizers) != 0 || len(w.driver.Volumes()) != 1 {
		t.Errorf("only the finalizer goes: %v, volumes %v", pv, w.driver.Volumes())
	}
}

func TestProtect(t *testing.T) {
	w := newWorld(t, makePV(phase(corev1.VolumeBound), unheld))
	w.settle()
	if pv := w.pv(); len(pv.Finalizers) != 1 || pv.Finalizers[0] != volume.FinalizerProvisioner {
		t.Errorf("finalizers %v", pv.Finalizers)
	}
}

// TestStaleCache: the cache says Released and Delete; the API server knows
// better.
func TestStaleCache(t *testing.T) {
	cases := map[string]struct {
		reason  string
		live    []client.Object
		wantErr bool
	}{
		"now retained": {reason: "the user saved the data a moment ago", live: []client.Object{makePV(policy(corev1.PersistentVolumeReclaimRetain))}},
		"now bound":    {reason: "a claim has it again", live: []client.Object{makePV(phase(corev1.VolumeBound))}},
		"made anew":    {reason: "another object of the name", live: []client.Object{makePV(func(pv *corev1.PersistentVolume) { pv.UID = "pv-2" })}},
		"gone":         {reason: "deleted by hand; what became of the volume is not known here", live: nil},
		"claim has it": {reason: "the phase lags behind the claim", live: []client.Object{makePV(), makeClaim("claim-1", "pvc-1")}, wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, makePV())
			w.start()
			w.r.live = csitest.API(tc.live...)
			err := w.reconcile()
			if (err != nil) != tc.wantErr {
				t.Errorf("%s: error %v", tc.reason, err)
			}
			if len(w.driver.Volumes()) != 1 || w.pv() == nil || w.pv().DeletionTimestamp != nil {
				t.Errorf("%s: volumes %v, PersistentVolume %v", tc.reason, w.driver.Volumes(), w.pv())
			}
		})
	}
}

// TestOtherClaimOfTheName: a claim that was made anew does not hold the volume
// of the one before it.
func TestOtherClaimOfTheName(t *testing.T) {
	w := newWorld(t, makePV(), makeClaim("claim-2", ""))
	w.settle()
	if w.pv() != nil || len(w.driver.Volumes()) != 0 {
		t.Errorf("left: %v, volumes %v", w.pv(), w.driver.Volumes())
	}
}

func TestDriverRefuses(t *testing.T) {
	w := newWorld(t, makePV())
	w.start()
	w.driver.Refuse = func(string, int64) error {
		return status.Error(codes.FailedPrecondition, "still staged")
	}
	if err := w.reconcile(); err == nil {
		t.Error("a volume that is not deleted is to be tried again")
	}
	if w.pv() == nil || w.pv().DeletionTimestamp != nil {
		t.Error("the object must not go before its volume")
	}
	if len(w.events.Told) != 1 || !strings.Contains(w.events.Told[0], "VolumeFailedDelete deleting the volume: still staged") {
		t.Errorf("told %q", w.events.Told)
	}
}
