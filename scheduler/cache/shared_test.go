package cache

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/scheduler/binding"
)

// TestSharedVolume: a volume that one pod's bind reserved, and that another pod of
// the claim has in its plan, is not given back, in whatever order the API's answer
// and the informer's events come.
func TestSharedVolume(t *testing.T) {
	pv := func(version string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		p := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "uv", ResourceVersion: version},
			Spec:       corev1.PersistentVolumeSpec{StorageClassName: "A", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("50")}},
			Status:     corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		}
		change(p)
		return p
	}
	reserved := func(p *corev1.PersistentVolume) {
		p.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "u1"}
	}
	labelled := func(p *corev1.PersistentVolume) {
		reserved(p)
		p.Labels = map[string]string{"a": "b"}
	}
	begun := func(p *corev1.PersistentVolume) {
		reserved(p)
		p.Status.Phase = corev1.VolumeBound
	}
	plan := binding.BindPlan{Node: "n1", Binds: []binding.Bind{{Claim: "default/c", ClaimUID: "u1", Volume: "v", VolumeUID: "uv"}}}
	event := func(version string, change func(*corev1.PersistentVolume)) func(*stores) {
		return func(s *stores) { s.set(pv(version, change)) }
	}
	answer := func(s *stores) { s.WroteVolume(pv("4", reserved)) }
	second := func(s *stores) {
		if err := s.Assume(plan, "second"); err != nil {
			s.t.Fatal(err)
		}
	}
	secondForgets := func(s *stores) { s.Forget(plan, "second") }
	first := func(s *stores) { s.Forget(plan, "pod") }
	cases := map[string]struct {
		reason string
		steps  []func(*stores)
		shared bool
	}{
		"alone":              {"nobody else counts on it", []func(*stores){answer, event("4", reserved)}, false},
		"before the answer":  {"both see it free", []func(*stores){second, answer, event("4", reserved)}, true},
		"before the event":   {"the answer came first", []func(*stores){answer, second, event("4", reserved)}, true},
		"after both":         {"it sees it reserved for its claim", []func(*stores){answer, event("4", reserved), second}, true},
		"between the two":    {"the event was faster than the answer", []func(*stores){event("4", reserved), second, answer}, true},
		"and another change": {"a label ends no promise", []func(*stores){answer, event("4", reserved), second, event("5", labelled)}, true},
		"the first gone":     {"its plan is its own", []func(*stores){answer, event("4", reserved), second, first, event("5", labelled)}, true},
		"forgotten":          {"the second went elsewhere", []func(*stores){answer, second, event("4", reserved), secondForgets}, false},
		"begun":              {"the PV controller's hand is on it", []func(*stores){answer, second, event("5", begun)}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.set(pvc("u1", "2", ""))
			s.set(pv("3", func(*corev1.PersistentVolume) {}))
			s.mustAssume(plan)
			for _, step := range tc.steps {
				step(s)
			}
			if got := s.AssumedByAnother("v", "pod"); got != tc.shared {
				t.Errorf("%s: another has it in its plan: %v", tc.reason, got)
			}
			s.Forget(plan, "pod")
			s.Forget(plan, "second")
			s.set(pv("9", reserved))
			if len(s.volumes.assumed) > 0 {
				t.Errorf("it stays assumed: %v", s.volumes.assumed["v"])
			}
		})
	}
}
