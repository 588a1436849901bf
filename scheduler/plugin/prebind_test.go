package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// ready is a pod reserved on a node, with one claim to provision (dyn) and one
// volume to bind (vol).
func ready(t *testing.T) *cycle {
	t.Helper()
	pod := fakeapi.Pod("web", "dyn", "sta")
	c := newCluster(t, fakeapi.Node("n1"), fakeapi.Driver(driverName), fakeapi.Class("fast", driverName), fakeapi.Capacity("fast", "n1", "8Gi", 5),
		fakeapi.Class("local", "kubernetes.io/no-provisioner"), fakeapi.PV("vol", "local", "2Gi", "n1"),
		fakeapi.PVC("dyn", "fast", "6Gi"), fakeapi.PVC("sta", "local", "1Gi"), pod)
	cy, refused := c.start(t.Context()).judge(pod)
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	if s := cy.reserve("n1"); !s.IsSuccess() {
		t.Fatal(s)
	}
	return cy
}

func (cy *cycle) free() int64 {
	most, _ := cy.plugin.cache.Snapshot().MostAvailable(&binding.Class{Name: "fast"})
	return most / volume.GiB
}

// TestPreBindFailures: what others do while PreBind waits ends the wait with a
// reason; what was written stays, and stays held.
func TestPreBindFailures(t *testing.T) {
	written := func(cy *cycle) func() {
		return func() {
			cy.seen(func() bool {
				pvc := cy.plugin.cache.ClaimByKey("default/dyn")
				pv := cy.plugin.cache.Volume("vol")
				return pvc.Annotations[volume.AnnSelectedNode] == "n1" && pv.Spec.ClaimRef != nil
			})
		}
	}
	cases := map[string]struct {
		reason string
		// meddle runs once both writes have arrived; cancel ends PreBind's context.
		meddle   func(cy *cycle, cancel context.CancelCauseFunc)
		want     string
		wantFree int64
	}{
		"given back": {
			reason: "the provisioner removed the selection, which ends the hold",
			meddle: func(cy *cycle, _ context.CancelCauseFunc) {
				pvc := cy.Claim("dyn")
				delete(pvc.Annotations, volume.AnnSelectedNode)
				cy.Put(pvc)
			}, want: "claim default/dyn: the provisioner gave node n1 back", wantFree: 8,
		},
		"reservation lost": {
			reason: "the PV controller reset the volume's claimRef",
			meddle: func(cy *cycle, _ context.CancelCauseFunc) {
				pv := cy.Volume("vol")
				pv.Spec.ClaimRef = nil
				cy.Put(pv)
			}, want: "volume vol lost its reservation for claim default/sta", wantFree: 2,
		},
		"volume deleted": {
			reason: "nothing will be bound",
			meddle: func(cy *cycle, _ context.CancelCauseFunc) { cy.Delete(cy.Volume("vol")) },
			want:   "volume vol does not exist any more", wantFree: 2,
		},
		"claim deleted": {
			reason: "the claim's hold ends with it",
			meddle: func(cy *cycle, _ context.CancelCauseFunc) { cy.Delete(cy.Claim("dyn")) },
			want:   "claim default/dyn does not exist any more", wantFree: 8,
		},
		"claim recreated": {
			reason: "a namesake is another claim",
			meddle: func(cy *cycle, _ context.CancelCauseFunc) {
				pvc := fakeapi.PVC("dyn", "fast", "6Gi")
				pvc.UID = "another"
				cy.Put(pvc)
			}, want: "claim default/dyn does not exist any more", wantFree: 8,
		},
		"pod deleted": {
			reason: "nobody waits any more",
			meddle: func(cy *cycle, _ context.CancelCauseFunc) { cy.Delete(cy.pod) },
			want:   "pod default/web does not exist any more", wantFree: 2,
		},
		"node deleted": {
			reason: "there is no place to wait for",
			meddle: func(cy *cycle, _ context.CancelCauseFunc) { cy.Delete(fakeapi.Node("n1")) },
			// The only node is gone, and its capacity with it.
			want: "node n1 does not exist any more", wantFree: 0,
		},
		"wrong place": {
			reason: "the volume was made where the pod will not be",
			meddle: func(cy *cycle, _ context.CancelCauseFunc) {
				pvc := cy.Claim("dyn")
				pv := fakeapi.Provisioned(pvc, 100)
				pv.Spec.NodeAffinity = fakeapi.PV("", "", "1Gi", "n9").Spec.NodeAffinity
				cy.Put(pv)
				cy.Put(fakeapi.BoundTo(pvc, pv.Name))
			}, want: "claim default/dyn: volume pvc-uid-dyn cannot be reached from node n1", wantFree: 2,
		},
		"preempted": {
			reason: "the context's cause and what was awaited are both said",
			meddle: func(cy *cycle, cancel context.CancelCauseFunc) { cancel(errors.New("preempted")) },
			want:   "waiting for the PV controller to bind it to volume vol: preempted", wantFree: 2,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cy := ready(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			result := make(chan *fwk.Status, 1)
			go func() { result <- cy.bind(ctx, "n1") }()
			written(cy)()
			tc.meddle(cy, cancel)
			s := <-result
			if s.Code() != fwk.Error || !strings.Contains(s.Message(), tc.want) {
				t.Errorf("%s: got %v, want an error with %q", tc.reason, s, tc.want)
			}
			cy.unreserve()
			cy.seen(func() bool { return cy.free() == tc.wantFree })
		})
	}
}

func TestPreBindTimeout(t *testing.T) {
	cy := ready(t)
	cy.plugin.timeout = 1
	s := cy.bind(t.Context(), "n1")
	if s.Code() != fwk.Error || !strings.Contains(s.Message(), context.DeadlineExceeded.Error()) {
		t.Errorf("got %v", s)
	}
}

// TestPreBindConflicts: a write that meets another version is repeated on what
// is there now, if that still allows it.
func TestPreBindConflicts(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("x"), "x", errors.New("other version"))
	cases := map[string]struct {
		reason string
		// before runs inside the API server, ahead of the n-th patch of a resource.
		before func(cy *cycle, resource string, n int) error
		want   string
	}{
		"claim changed": {
			reason: "an unrelated change is no reason to give up",
			before: func(cy *cycle, resource string, n int) error {
				if resource == "persistentvolumeclaims" && n == 1 {
					return conflict
				}
				return nil
			},
		},
		"volume changed": {
			reason: "an unrelated change is no reason to give up",
			before: func(cy *cycle, resource string, n int) error {
				if resource == "persistentvolumes" && n <= 3 {
					return conflict
				}
				return nil
			},
		},
		"changes for ever": {
			reason: "the attempts are bounded",
			before: func(cy *cycle, resource string, n int) error {
				if resource == "persistentvolumes" {
					return conflict
				}
				return nil
			}, want: "reserving volume vol for claim default/sta",
		},
		"volume taken": {
			reason: "what was found after the conflict decides",
			before: func(cy *cycle, resource string, n int) error {
				if resource != "persistentvolumes" || n > 1 {
					return nil
				}
				pv := cy.Volume("vol")
				pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "thief", UID: "thief"}
				if err := cy.Write(pv); err != nil {
					return err
				}
				return conflict
			}, want: "volume vol was taken by claim default/thief",
		},
		"selected elsewhere": {
			reason: "another scheduler was faster",
			before: func(cy *cycle, resource string, n int) error {
				if resource != "persistentvolumeclaims" || n > 1 {
					return nil
				}
				pvc := cy.Claim("dyn")
				metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnSelectedNode, "n9")
				if err := cy.Write(pvc); err != nil {
					return err
				}
				return conflict
			}, want: "claim default/dyn: another node, n9, was selected",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cy := ready(t)
			count := map[string]int{}
			cy.BeforePatch(func(resource, _ string) error {
				count[resource]++
				return tc.before(cy, resource, count[resource])
			})
			if tc.want == "" {
				cy.PVController(t.Context())
			}
			s := cy.bind(t.Context(), "n1")
			if tc.want == "" && !s.IsSuccess() || tc.want != "" && !strings.Contains(s.Message(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, s, tc.want)
			}
		})
	}
}

// TestUncertainWrite: a write without an answer keeps its bytes after Unreserve.
func TestUncertainWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want int64
	}{
		"no answer": {errors.New("connection lost"), 2},
		"broken":    {apierrors.NewInternalError(errors.New("etcd")), 2},
		"refused":   {apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "dyn", errors.New("policy")), 8},
	} {
		t.Run(name, func(t *testing.T) {
			cy := ready(t)
			cy.BeforePatch(func(resource, _ string) error {
				if resource == "persistentvolumeclaims" {
					return tc.err
				}
				return nil
			})
			if s := cy.bind(t.Context(), "n1"); s.IsSuccess() {
				t.Fatal("PreBind succeeded")
			}
			cy.unreserve()
			if got := cy.free(); got != tc.want {
				t.Errorf("%d GiB free after Unreserve, want %d", got, tc.want)
			}
		})
	}
}
