package expand

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

func testScope() scope.Scope { return scope.Scope{Driver: volume.DriverName, Node: "n1"} }

const gi = volume.GiB

func list(size int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: quantity(size)}
}

func makeClaim(asked, has int64, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim-1"},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pvc-1", Resources: corev1.VolumeResourceRequirements{Requests: list(asked)},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: list(has)},
	}
	for _, f := range changes {
		f(c)
	}
	return c
}

func tried(size int64, state corev1.ClaimResourceStatus) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { setTried(c, size, state) }
}

func makePV(size int64, changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-1", Labels: map[string]string{volume.LabelNode: "n1"},
			Annotations: map[string]string{volume.AnnProvisionedBy: volume.DriverName},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: list(size), ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "claim-1"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: volume.DriverName, VolumeHandle: "pool/pvc-1", FSType: "ext4"},
			},
		},
	}
	for _, f := range changes {
		f(pv)
	}
	return pv
}

func noted(pv *corev1.PersistentVolume) { pv.Annotations[volume.AnnPreResizeCapacity] = "1Gi" }

func TestDecide(t *testing.T) {
	const (
		inProgress     = corev1.PersistentVolumeClaimControllerResizeInProgress
		infeasible     = corev1.PersistentVolumeClaimControllerResizeInfeasible
		nodePending    = corev1.PersistentVolumeClaimNodeResizePending
		nodeInProgress = corev1.PersistentVolumeClaimNodeResizeInProgress
		nodeInfeasible = corev1.PersistentVolumeClaimNodeResizeInfeasible
	)
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		pv     *corev1.PersistentVolume
		failed int64
		want   Plan
	}{
		"served":  {reason: "it has what it asks for", claim: makeClaim(gi, gi), pv: makePV(gi)},
		"more":    {reason: "the plain case", claim: makeClaim(2*gi, gi), pv: makePV(gi), want: Plan{Action: Grow, Size: 2 * gi}},
		"unbound": {reason: "nothing to grow yet", claim: makeClaim(2*gi, gi, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }), pv: makePV(gi)},
		"not ours": {
			reason: "another node's volume is not in the cache",
			claim:  makeClaim(2*gi, gi),
		},
		"other claim": {
			reason: "the PersistentVolume is another claim's", claim: makeClaim(2*gi, gi),
			pv: makePV(gi, func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "claim-2" }),
		},
		"other driver": {
			reason: "not ours", claim: makeClaim(2*gi, gi),
			pv: makePV(gi, func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" }),
		},
		"deleting": {reason: "what goes does not grow", claim: makeClaim(2*gi, gi, func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }), pv: makePV(gi)},

		"unknown end": {
			reason: "a try whose end is unknown is finished first",
			claim:  makeClaim(3*gi, gi, tried(2*gi, inProgress)), pv: makePV(gi), want: Plan{Action: Grow, Size: 2 * gi},
		},
		"unknown end, lowered": {
			reason: "also when the user asks for less meanwhile",
			claim:  makeClaim(2*gi, gi, tried(5*gi, inProgress)), pv: makePV(gi), want: Plan{Action: Grow, Size: 5 * gi},
		},
		"failed, lowered": {
			reason: "after a final failure the user's new size counts",
			claim:  makeClaim(2*gi, gi, tried(5*gi, inProgress)), pv: makePV(gi), failed: 5 * gi, want: Plan{Action: Grow, Size: 2 * gi},
		},
		"failed at another size": {
			reason: "an older failure says nothing of this try",
			claim:  makeClaim(2*gi, gi, tried(5*gi, inProgress)), pv: makePV(gi), failed: 9 * gi, want: Plan{Action: Grow, Size: 5 * gi},
		},
		"stale try": {
			reason: "a size from an earlier growth is none",
			claim:  makeClaim(3*gi, 2*gi, tried(2*gi, inProgress)), pv: makePV(2 * gi), want: Plan{Action: Grow, Size: 3 * gi},
		},
		"infeasible": {
			reason: "the same size again only slowly",
			claim:  makeClaim(9*gi, gi, tried(9*gi, infeasible)), pv: makePV(gi), want: Plan{Action: Grow, Size: 9 * gi, Slow: true},
		},
		"infeasible, lowered": {
			reason: "recover: another size at once",
			claim:  makeClaim(2*gi, gi, tried(9*gi, infeasible)), pv: makePV(gi), want: Plan{Action: Grow, Size: 2 * gi},
		},
		"crash after the volume's write": {
			reason: "the volume has grown, the claim does not say so yet",
			claim:  makeClaim(2*gi, gi, tried(2*gi, inProgress)), pv: makePV(2 * gi), want: Plan{Action: Grow, Size: 2 * gi},
		},

		"node pending":     {reason: "the node's turn", claim: makeClaim(2*gi, gi, tried(2*gi, nodePending)), pv: makePV(2 * gi)},
		"node in progress": {reason: "the node's turn", claim: makeClaim(2*gi, gi, tried(2*gi, nodeInProgress)), pv: makePV(2 * gi)},
		"node pending, more asked": {
			reason: "one size after the other",
			claim:  makeClaim(3*gi, gi, tried(2*gi, nodePending)), pv: makePV(2 * gi),
		},
		"node pending, small volume": {
			reason: "the volume never got its size",
			claim:  makeClaim(2*gi, gi, tried(2*gi, nodePending)), pv: makePV(gi), want: Plan{Action: Grow, Size: 2 * gi},
		},
		"node infeasible": {
			reason: "the same size again, slowly, lets the node try again",
			claim:  makeClaim(2*gi, gi, tried(2*gi, nodeInfeasible)), pv: makePV(2 * gi), want: Plan{Action: Grow, Size: 2 * gi, Slow: true},
		},

		"volume larger": {
			reason: "the driver says whether the node has to act",
			claim:  makeClaim(2*gi, gi), pv: makePV(3 * gi), want: Plan{Action: Grow, Size: 2 * gi},
		},
		"complete, noted": {
			reason: "the node is done, the note goes",
			claim:  makeClaim(2*gi, 2*gi, tried(2*gi, "")), pv: makePV(2*gi, noted), want: Plan{Action: Tidy},
		},
		"incomplete, noted": {
			reason: "the note is for a node that has yet to act",
			claim:  makeClaim(gi, gi), pv: makePV(2*gi, noted),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := decide(question{scope: testScope(), claim: tc.claim, pv: tc.pv, failed: tc.failed})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}
