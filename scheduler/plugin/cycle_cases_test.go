package plugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/scheduler/args"
	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// upstreamVolumes is upstream's VolumeBinding on the same framework, with the
// same shape.
func (r *rig) upstreamVolumes(shape []args.ShapePoint) volumesPlugin {
	r.t.Helper()
	theirs := &config.VolumeBindingArgs{BindTimeoutSeconds: 600}
	for _, p := range shape {
		theirs.Shape = append(theirs.Shape, config.UtilizationShapePoint{Utilization: p.Utilization, Score: p.Score})
	}
	p, err := volumebinding.New(r.ctx, theirs, r.framework.(fwk.Handle), feature.Features{EnableVolumeAttributesClass: true, EnableStorageCapacityScoring: true})
	if err != nil {
		r.t.Fatal(err)
	}
	return p.(volumesPlugin)
}

// scored is the answer of a node that takes the pod.
func scored(score int) string { return fmt.Sprintf("Success score %d Success", score) }

// TestCycle: a pod's way through PreFilter, Filter, PreScore and Score, node by
// node, and the same of upstream (upstream: TestVolumeBinding).
func TestCycle(t *testing.T) {
	const refused = "UnschedulableAndUnresolvable "
	all := func(answer string) map[string]string {
		return map[string]string{"n1": answer, "n2": answer, "n3": answer, "n4": answer}
	}
	lost := fakeapi.BoundTo(fakeapi.PVC("a", "wait", "1Gi"), "gone")
	lost.Status.Phase = corev1.ClaimLost
	zonal := func(name, class, size, zone string) *corev1.PersistentVolume {
		pv := fakeapi.PV(name, class, size, "n1")
		pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0] = corev1.NodeSelectorRequirement{
			Key: volume.LabelZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone},
		}
		return pv
	}
	ofNodes := func(class string) []runtime.Object {
		return []runtime.Object{
			fakeapi.PV("n1-0-"+class, class, "200Gi", "n1"), fakeapi.PV("n1-1-"+class, class, "200Gi", "n1"),
			fakeapi.PV("n2-0-"+class, class, "100Gi", "n2"), fakeapi.PV("n2-1-"+class, class, "100Gi", "n2"),
		}
	}
	ofZones := []runtime.Object{
		fakeapi.PVC("a", "wait", "50Gi"),
		zonal("z1-0", "wait", "200Gi", "z1"), zonal("z1-1", "wait", "200Gi", "z1"), zonal("z2-0", "wait", "100Gi", "z2"), zonal("z2-1", "wait", "100Gi", "z2"),
	}
	pools := func(n1, n2, n3 string) []runtime.Object {
		return []runtime.Object{fakeapi.Capacity("dyn", "n1", n1, 1), fakeapi.Capacity("dyn", "n2", n2, 1), fakeapi.Capacity("dyn", "n3", n3, 1)}
	}
	fullest := []args.ShapePoint{{Utilization: 0, Score: 0}, {Utilization: 100, Score: 10}}
	cases := map[string]struct {
		reason   string
		objects  []runtime.Object
		claims   []string
		shape    []args.ShapePoint
		want     map[string]string
		prescore fwk.Code
	}{
		"no claims":        {reason: "there is nothing to judge", want: all("Skip")},
		"bound everywhere": {reason: "no score tells nodes apart", objects: []runtime.Object{fakeapi.BoundTo(fakeapi.PVC("a", "wait", "1Gi"), "pv"), fakeapi.PV("pv", "wait", "1Gi", "")}, claims: []string{"a"}, want: all(scored(0)), prescore: fwk.Skip},
		"claim missing":    {reason: "no node helps", claims: []string{"a"}, want: all("UnschedulableAndUnresolvable")},
		"one claim missing": {
			reason: "no node helps", objects: []runtime.Object{fakeapi.BoundTo(fakeapi.PVC("a", "wait", "1Gi"), "pv"), fakeapi.PV("pv", "wait", "1Gi", "")}, claims: []string{"a", "b"},
			want: all("UnschedulableAndUnresolvable"),
		},
		"immediate, unbound": {reason: "the PV controller's business", objects: []runtime.Object{fakeapi.PVC("a", "now", "1Gi")}, claims: []string{"a"}, want: all("UnschedulableAndUnresolvable")},
		"no volume":          {reason: "and nobody makes one", objects: []runtime.Object{fakeapi.PVC("a", "wait", "1Gi")}, claims: []string{"a"}, want: all(refused + noVolume)},
		"bound elsewhere, and no volume": {
			reason: "both causes are told", claims: []string{"a", "b"}, want: all(refused + noVolume + "; " + noAffinity),
			objects: []runtime.Object{fakeapi.BoundTo(fakeapi.PVC("a", "wait", "1Gi"), "pv"), fakeapi.PV("pv", "wait", "1Gi", "n9"), fakeapi.PVC("b", "wait", "1Gi")},
		},
		"volume gone":       {reason: "the data are gone", objects: []runtime.Object{fakeapi.BoundTo(fakeapi.PVC("a", "wait", "1Gi"), "gone")}, claims: []string{"a"}, want: all(refused + noPV)},
		"volume gone, lost": {reason: "and the PV controller says so", objects: []runtime.Object{lost}, claims: []string{"a"}, want: all("UnschedulableAndUnresolvable")},
		"local volumes": {
			reason: "what is left unused counts for a node", claims: []string{"a"}, objects: append(ofNodes("wait"), fakeapi.PVC("a", "wait", "50Gi")),
			want: map[string]string{"n1": scored(75), "n2": scored(50), "n3": refused + noVolume, "n4": refused + noVolume},
		},
		"local volumes of two classes": {
			reason: "the classes count alike", claims: []string{"a", "b"}, objects: append(append(ofNodes("wait"), ofNodes("hdd")...), fakeapi.PVC("a", "wait", "50Gi"), fakeapi.PVC("b", "hdd", "100Gi")),
			want: map[string]string{"n1": scored(63), "n2": scored(25), "n3": refused + noVolume, "n4": refused + noVolume},
		},
		"zonal volumes": {reason: "nodes of one zone are alike", claims: []string{"a"}, objects: ofZones, want: map[string]string{"n1": scored(75), "n2": scored(75), "n3": scored(50), "n4": scored(50)}},
		"zonal volumes, fullest first": {
			reason: "the shape turns the order round", claims: []string{"a"}, objects: ofZones, shape: fullest,
			want: map[string]string{"n1": scored(25), "n2": scored(25), "n3": scored(50), "n4": scored(50)},
		},
		"capacity": {
			reason: "what is left free counts", claims: []string{"a"}, objects: append(pools("100Gi", "50Gi", "10Gi"), fakeapi.PVC("a", "dyn", "10Gi")),
			want: map[string]string{"n1": scored(90), "n2": scored(80), "n3": scored(0), "n4": refused + noSpace},
		},
		"capacity beside a local volume": {
			reason: "volumes that exist decide alone", claims: []string{"a", "b"},
			objects: append(pools("100Gi", "50Gi", "10Gi"), fakeapi.PVC("a", "dyn", "10Gi"), fakeapi.PVC("b", "wait", "50Gi"), fakeapi.PV("pv1", "wait", "100Gi", "n1"), fakeapi.PV("pv2", "wait", "100Gi", "n2"), fakeapi.PV("pv3", "wait", "100Gi", "n3")),
			want:    map[string]string{"n1": scored(50), "n2": scored(50), "n3": scored(50), "n4": refused + noSpace},
		},
		"two claims of one pool": {
			reason: "they fill it", claims: []string{"a", "b"}, objects: append(pools("100Gi", "200Gi", "99Gi")[:2], fakeapi.PVC("a", "dyn", "50Gi"), fakeapi.PVC("b", "dyn", "50Gi")),
			want: map[string]string{"n1": scored(0), "n2": scored(50), "n3": refused + noSpace, "n4": refused + noSpace},
		},
		"capacity, fullest first": {
			reason: "the shape turns the order round", claims: []string{"a"}, shape: fullest, objects: append(pools("100Gi", "20Gi", "10Gi"), fakeapi.PVC("a", "dyn", "10Gi")),
			want: map[string]string{"n1": scored(10), "n2": scored(50), "n3": scored(100), "n4": refused + noSpace},
		},
		"capacity, emptiest first": {
			reason: "the default", claims: []string{"a"}, objects: append(pools("100Gi", "20Gi", "10Gi"), fakeapi.PVC("a", "dyn", "10Gi")),
			want: map[string]string{"n1": scored(90), "n2": scored(50), "n3": scored(0), "n4": refused + noSpace},
		},
		"selected already": {
			reason: "the provisioner's node is the only one", claims: []string{"a"}, objects: append(pools("100Gi", "20Gi", "10Gi"), selectedFor(fakeapi.PVC("a", "untracked", "10Gi"), "n2")),
			want: map[string]string{"n1": refused + noVolume, "n2": scored(0), "n3": refused + noVolume, "n4": refused + noVolume},
		},
		"driver that tracks nothing": {reason: "every node is as good", claims: []string{"a"}, objects: []runtime.Object{fakeapi.PVC("a", "untracked", "10Gi")}, want: all(scored(0))},
		"attributes class": {reason: "a volume of another one is no choice", claims: []string{"a"}, objects: []runtime.Object{
			func() *corev1.PersistentVolumeClaim {
				pvc := fakeapi.PVC("a", "wait", "1Gi")
				pvc.Spec.VolumeAttributesClassName = new("gold")
				return pvc
			}(),
			func() *corev1.PersistentVolume {
				pv := fakeapi.PV("pv1", "wait", "2Gi", "n1")
				pv.Spec.VolumeAttributesClassName = new("gold")
				return pv
			}(), fakeapi.PV("pv2", "wait", "2Gi", "n2"),
		}, want: map[string]string{"n1": scored(50), "n2": refused + noVolume, "n3": refused + noVolume, "n4": refused + noVolume}},
	}
	now := fakeapi.Class("now", noProvisioner)
	now.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			r := newCluster(t, append(tc.objects, now, fakeapi.Class("wait", noProvisioner), fakeapi.Class("hdd", noProvisioner), fakeapi.Class("dyn", driverName), fakeapi.Class("untracked", "untracked.driver"), fakeapi.Driver(driverName),
				fakeapi.Node("n1", volume.LabelZone, "z1"), fakeapi.Node("n2", volume.LabelZone, "z1"), fakeapi.Node("n3", volume.LabelZone, "z2"), fakeapi.Node("n4", volume.LabelZone, "z2"))...).start(t.Context())
			shape := []args.ShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
			if tc.shape != nil {
				shape = tc.shape
				r.rebind(func(o *binder.Options) { o.Shape = (&args.Args{Shape: shape}).Scores() })
			}
			infos, err := r.framework.SnapshotSharedLister().NodeInfos().List()
			if err != nil {
				t.Fatal(err)
			}
			pod := fakeapi.Pod("p", tc.claims...)
			if diff := cmp.Diff(tc.want, answers(t.Context(), t, r.plugin, pod, infos)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.want, answers(t.Context(), t, r.upstreamVolumes(shape), pod, infos)); diff != "" {
				t.Errorf("upstream answers otherwise, so what this case says is wrong: (-want +upstream)\n%s", diff)
			}
			cy, _ := r.judge(pod)
			if _, err := readState(cy.state); err != nil {
				return
			}
			if got := r.plugin.PreScore(t.Context(), cy.state, pod, infos).Code(); strings.HasPrefix(tc.want["n1"], "Success") && got != tc.prescore {
				t.Errorf("%s: PreScore %v, want %v", tc.reason, got, tc.prescore)
			}
		})
	}
}

// taken are the case's volumes and claims that nobody else can have on n1.
func (k caseName) taken(t *testing.T, r *rig) (out []string) {
	t.Helper()
	free := names{}
	claim := binding.Claim{Class: binding.Class{Name: string(k) + "local"}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}
	node := &binding.Node{Name: "n1", Labels: map[string]string{volume.LabelHostname: "n1"}}
	if shelf := r.plugin.cache.Snapshot().Shelf(&claim); shelf != nil {
		shelf.Ascend(node, 0, free)
	}
	volumes, err := r.Client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pv := range volumes.Items {
		if name, mine := strings.CutPrefix(pv.Name, string(k)); mine && !free[pv.Name] {
			out = append(out, name)
		}
	}
	claims, err := r.Client.CoreV1().PersistentVolumeClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pvc := range claims.Items {
		name, mine := strings.CutPrefix(pvc.Name, string(k))
		if !mine || pvc.Spec.VolumeName != "" {
			continue
		}
		q, err := r.plugin.cache.Ask([]*corev1.PersistentVolumeClaim{&pvc})
		if err != nil {
			t.Fatal(err)
		}
		if node := q.Pod.Delayed[0].SelectedNode; node != "" {
			out = append(out, name+" on "+node)
		}
	}
	return out
}

// names is a binding.Taker of all that there is.
type names map[string]bool

// Take implements binding.Taker.
func (n names) Take(v *binding.Volume) bool { n[v.Name] = true; return true }

// TestReserve: what a reservation takes, and that Unreserve and a failure give all
// of it back (upstream: TestAssumePodVolumes, TestRevertAssumedPodVolumes).
func TestReserve(t *testing.T) {
	pair := func(k caseName, claim, pv string) []runtime.Object {
		return []runtime.Object{k.pvc(claim, "local", "1Gi"), k.pv(pv, "local", "1Gi", "n1")}
	}
	ebb := func(name string) func(*rig, caseName) {
		return func(r *rig, k caseName) {
			r.Delete(r.Volume(string(k) + name))
			r.seen(func() bool { return r.plugin.cache.Volume(string(k)+name) == nil })
		}
	}
	cases := map[string]struct {
		reason  string
		objects func(caseName) []runtime.Object
		claims  []string
		// between runs after Filter.
		between func(*rig, caseName)
		// taken before and after.
		before, after []string
		wantErr       string
	}{
		"all bound": {
			reason: "there is nothing to take", claims: []string{"a"}, objects: func(k caseName) []runtime.Object { return k.bound("a", "local", "n1") },
			before: []string{"pv-a"}, after: []string{"pv-a"},
		},
		"one volume":  {reason: "it is the pod's", claims: []string{"a"}, objects: func(k caseName) []runtime.Object { return pair(k, "a", "pv1") }, after: []string{"pv1"}},
		"two volumes": {reason: "each is the pod's", claims: []string{"a", "b"}, objects: func(k caseName) []runtime.Object { return append(pair(k, "a", "pv1"), pair(k, "b", "pv2")...) }, after: []string{"pv1", "pv2"}},
		"reserved by name": {reason: "it was kept for the claim", claims: []string{"a"}, before: []string{"pv1"}, after: []string{"pv1"}, objects: func(k caseName) []runtime.Object {
			objects := pair(k, "a", "pv1")
			objects[1].(*corev1.PersistentVolume).Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: string(k) + "a"}
			return objects
		}},
		"volume gone": {
			reason: "all or nothing", claims: []string{"a", "b"}, objects: func(k caseName) []runtime.Object { return append(pair(k, "a", "pv1"), pair(k, "b", "pv2")...) },
			between: ebb("pv2"), wantErr: "pv2",
		},
		"a volume and a new one": {reason: "both are the pod's", claims: []string{"a", "b"}, after: []string{"pv1", "b on n1"}, objects: func(k caseName) []runtime.Object {
			return append(pair(k, "a", "pv1"), k.class("dyn", "untracked.driver"), k.pvc("b", "dyn", "1Gi"))
		}},
		"claim selected elsewhere": {reason: "all or nothing", claims: []string{"a", "b"}, before: []string{"b on n2"}, wantErr: "b", objects: func(k caseName) []runtime.Object {
			return append(pair(k, "a", "pv1"), k.class("dyn", "untracked.driver"), k.pvc("b", "dyn", "1Gi"))
		}, between: func(r *rig, k caseName) {
			r.Put(selectedFor(r.Claim(string(k)+"b"), "n2"))
			r.seen(func() bool {
				return r.plugin.cache.ClaimByKey("default/" + string(k) + "b").Annotations[volume.AnnSelectedNode] == "n2"
			})
		}},
	}
	var objects []runtime.Object
	for title, tc := range cases {
		k := nameOf(title)
		objects = append(append(objects, k.class("local", noProvisioner)), tc.objects(k)...)
	}
	r := caseRig(t, objects...)
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			k := nameOf(title)
			pod := k.pod(tc.claims...)
			cy := &cycle{rig: r, pod: pod, state: framework.NewCycleState()}
			if _, s, _ := r.framework.RunPreFilterPlugins(t.Context(), cy.state, pod); !s.IsSuccess() {
				t.Fatal(s)
			}
			if tc.between != nil {
				tc.between(r, k)
			}
			want := func(moment string, want []string) {
				t.Helper()
				if diff := cmp.Diff(want, k.taken(t, r)); diff != "" {
					t.Errorf("%s, %s: (-want +got)\n%s", tc.reason, moment, diff)
				}
			}
			want("before", tc.before)
			s := cy.reserve("n1")
			if s.IsSuccess() != (tc.wantErr == "") || !strings.Contains(k.plain(s.Message()), tc.wantErr) {
				t.Fatalf("%s: got %v, want %q", tc.reason, s, tc.wantErr)
			}
			if tc.wantErr != "" {
				tc.after = tc.before
			}
			want("reserved", tc.after)
			cy.unreserve()
			want("given back", tc.before)
		})
	}
}
