package expand

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/volume"
)

func TestGrowVolume(t *testing.T) {
	before := resource.MustParse("1Gi")
	cases := map[string]struct {
		reason  string
		pv      *corev1.PersistentVolume
		size    int64
		before  *resource.Quantity
		want    int64
		changed bool
		noted   string
	}{
		"grows":         {reason: "the plain case", pv: makePV(gi), size: 2 * gi, want: 2 * gi, changed: true},
		"noted":         {reason: "the node will need the old size", pv: makePV(gi), size: 2 * gi, before: &before, want: 2 * gi, changed: true, noted: "1Gi"},
		"never lowered": {reason: "a smaller size is that of an older answer", pv: makePV(3 * gi), size: 2 * gi, want: 3 * gi},
		"noted once":    {reason: "the size before the first of several steps counts", pv: makePV(2*gi, func(pv *corev1.PersistentVolume) { pv.Annotations[volume.AnnPreResizeCapacity] = "512Mi" }), size: 2 * gi, before: &before, want: 2 * gi, noted: "512Mi"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			changed := growVolume(tc.pv, tc.size, tc.before)
			got := tc.pv.Spec.Capacity.Storage().Value()
			if changed != tc.changed || got != tc.want || tc.pv.Annotations[volume.AnnPreResizeCapacity] != tc.noted {
				t.Errorf("%s: changed %t, capacity %d, annotations %v", tc.reason, changed, got, tc.pv.Annotations)
			}
		})
	}
}

func TestSetConditions(t *testing.T) {
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	claim := makeClaim(2*gi, gi)
	becomeInProgress(claim, 2*gi, early)
	becomeInProgress(claim, 2*gi, late)
	if got := claim.Status.Conditions; len(got) != 1 || !got[0].LastTransitionTime.Equal(&metav1.Time{Time: early}) {
		t.Errorf("a condition that holds on keeps its time: %v", got)
	}
	becomeGrown(claim, 2*gi, late)
	if len(claim.Status.Conditions) != 0 || len(claim.Status.AllocatedResourceStatuses) != 0 {
		t.Errorf("a finished growth leaves nothing behind: %v", claim.Status)
	}
}
