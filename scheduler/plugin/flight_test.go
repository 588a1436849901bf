package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestResizeDeferred: a pod that is on its node and waits to be resized there is
// judged for room by others, and its volumes are where it is (gate
// InPlacePodVerticalScalingSchedulerPreemption).
func TestResizeDeferred(t *testing.T) {
	waits := fakeapi.Pod("p", "missing")
	waits.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred}}
	cases := map[string]struct {
		reason string
		gate   bool
		pod    *corev1.Pod
		skips  bool
	}{
		"deferred":           {"nothing is to be bound", true, waits, true},
		"deferred, gate off": {"the pod is as any other", false, waits, false},
		"not deferred":       {"the pod is as any other", true, fakeapi.Pod("p", "missing"), false},
	}
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			r := newCluster(t, fakeapi.Node("n1")).start(t.Context())
			r.plugin.resizes = tc.gate
			infos, err := r.framework.SnapshotSharedLister().NodeInfos().List()
			if err != nil {
				t.Fatal(err)
			}
			state := framework.NewCycleState()
			result, s := r.plugin.PreFilter(t.Context(), state, tc.pod, infos)
			if got := s.Code() == fwk.Skip; got != tc.skips || result != nil {
				t.Errorf("%s: PreFilter %v, %v", tc.reason, result, s)
			}
			if !tc.skips {
				return
			}
			// Preemption's dry run asks Filter whatever PreFilter skipped.
			if s := r.plugin.Filter(t.Context(), framework.NewCycleState(), tc.pod, infos[0]); !s.IsSuccess() {
				t.Errorf("%s: Filter %v", tc.reason, s)
			}
		})
	}
}

// TestPreFlight: whether PreBind has anything to do on a node, told before
// (upstream: Test_PreBindPreFlight).
func TestPreFlight(t *testing.T) {
	objects := []runtime.Object{fakeapi.Node("n1"), fakeapi.Node("n2"), fakeapi.Class("local", noProvisioner), fakeapi.PVC("a", "local", "1Gi"), fakeapi.PV("pv", "local", "1Gi", "n1")}
	bound := fakeapi.PVC("b", "local", "1Gi")
	objects = append(objects, fakeapi.BoundTo(bound, "pv-b"), takenBy(fakeapi.PV("pv-b", "local", "1Gi", "n1"), bound))
	r := newCluster(t, objects...).start(t.Context())
	cases := map[string]struct {
		reason   string
		pod      *corev1.Pod
		reserved bool
		node     string
		want     fwk.Code
	}{
		"all bound":       {"there is nothing to do", fakeapi.Pod("p", "b"), true, "n1", fwk.Skip},
		"no claims":       {"there is nothing to do", fakeapi.Pod("p"), true, "n1", fwk.Skip},
		"to be bound":     {"PreBind has to run", fakeapi.Pod("p", "a"), true, "n1", fwk.Success},
		"nothing judged":  {"the cycle has no state", nil, false, "n1", fwk.Error},
		"not reserved":    {"there is no plan", fakeapi.Pod("p", "a"), false, "n1", fwk.Error},
		"of another node": {"the plan is for another node", fakeapi.Pod("p", "a"), true, "n2", fwk.Error},
	}
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			var state fwk.CycleState = framework.NewCycleState()
			pod := fakeapi.Pod("p", "a")
			if tc.pod != nil {
				pod = tc.pod
				var cy *cycle
				cy, _ = r.judge(pod)
				state = cy.state
				if tc.reserved {
					if s := cy.reserve("n1"); !s.IsSuccess() {
						t.Fatal(s)
					}
					defer cy.unreserve()
				}
			}
			result, s := r.plugin.PreBindPreFlight(t.Context(), state, pod, tc.node)
			if s.Code() != tc.want || result == nil || !result.AllowParallel {
				t.Errorf("%s: got %+v, %v, want %v", tc.reason, result, s, tc.want)
			}
		})
	}
}

// TestMigratedIsBound: a volume of a plugin that a CSI driver took over is chosen,
// reserved and awaited on a node that has the driver, and on one that has not.
func TestMigratedIsBound(t *testing.T) {
	for title, plugins := range map[string]string{"handled by the driver": ebsPlugin, "not yet": ""} {
		t.Run(title, func(t *testing.T) {
			pv := fakeapi.PV("tree", "local", "1Gi", "n1")
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0] = corev1.NodeSelectorRequirement{
				Key: volume.LabelZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"},
			}
			pod := fakeapi.Pod("web", "a")
			c := newCluster(t, fakeapi.Node("n1", volume.LabelZone, "z1", ebsZone, "z1"), fakeapi.Node("n2", volume.LabelZone, "z2", ebsZone, "z2"),
				&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{volume.AnnMigratedPlugins: plugins}}},
				fakeapi.Class("local", noProvisioner), pv, fakeapi.PVC("a", "local", "1Gi"), pod)
			cy, refused := c.start(t.Context()).judge(pod)
			if _, here := refused["n1"]; here || len(refused) != 1 {
				t.Fatalf("refused: %v", refused)
			}
			if s := cy.reserve("n1"); !s.IsSuccess() {
				t.Fatal(s)
			}
			c.PVController(t.Context())
			if s := cy.bind(t.Context(), "n1"); !s.IsSuccess() {
				t.Fatal(s)
			}
			if ref := c.Volume("tree").Spec.ClaimRef; ref == nil || ref.Name != "a" {
				t.Errorf("claimRef %v", ref)
			}
		})
	}
}

// TestSharedPoolsOfArgs: classes of a driver that an argument says to share their
// space share it; without the argument each object is a pool of its own.
func TestSharedPoolsOfArgs(t *testing.T) {
	const driver = "shared.example.com"
	class := func(name string) *storagev1.StorageClass {
		sc := fakeapi.Class(name, driver)
		sc.Parameters = map[string]string{"group": "vg0"}
		return sc
	}
	room := func(class string) *storagev1.CSIStorageCapacity {
		o := fakeapi.Capacity(class, "n1", "10Gi", 1)
		o.Annotations = nil
		return o
	}
	pod := fakeapi.Pod("p", "a", "b")
	r := newCluster(t, fakeapi.Node("n1"), fakeapi.Driver(driver), class("one"), class("two"), room("one"), room("two"),
		fakeapi.PVC("a", "one", "6Gi"), fakeapi.PVC("b", "two", "6Gi")).start(t.Context())
	infos, err := r.framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	for title, tc := range map[string]struct{ reason, args, want string }{
		"apart":        {"each object is a pool", `{}`, "Success"},
		"shared":       {"12 GiB do not fit in 10", `{"sharedPools": [{"driver": "` + driver + `", "parameter": "group"}]}`, noSpace},
		"other driver": {"the argument is of another driver", `{"sharedPools": [{"driver": "other", "parameter": "group"}]}`, "Success"},
	} {
		t.Run(title, func(t *testing.T) {
			made, err := new(Factory).New(t.Context(), &runtime.Unknown{Raw: []byte(tc.args), ContentType: runtime.ContentTypeJSON}, r.framework.(fwk.Handle))
			if err != nil {
				t.Fatal(err)
			}
			r.Factory.Start(t.Context().Done())
			r.Factory.WaitForCacheSync(t.Context().Done())
			got := answers(t.Context(), t, made.(volumesPlugin), pod, infos)["n1"]
			if !strings.Contains(got, tc.want) {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
