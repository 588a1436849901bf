package plugin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
)

const ebsDriver = "ebs.csi.aws.com"

func makeCSINode(limits map[string]int32) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, driver := range keys(limits) {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{
			Name: driver, NodeID: "n1",
			Allocatable: &storagev1.VolumeNodeResources{Count: new(limits[driver])},
		})
	}
	return n
}

// attachCluster has one node with room for two volumes of each of two drivers,
// and three claims bound to volumes of the first.
func attachCluster(t *testing.T, extra ...runtime.Object) *cluster {
	objects := []runtime.Object{
		fakeapi.Node("n1"), fakeapi.Class("fast", driverName), fakeapi.Class("ebs", "kubernetes.io/aws-ebs"),
		makeCSINode(map[string]int32{driverName: 2, ebsDriver: 2}),
	}
	for _, c := range []string{"a", "b", "c"} {
		pv := fakeapi.PV("pv-"+c, "fast", "1Gi", "")
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: c, UID: "x"}
		objects = append(objects, pv, fakeapi.BoundTo(fakeapi.PVC(c, "fast", "1Gi"), "pv-"+c))
	}
	return newCluster(t, append(objects, extra...)...)
}

// upstreamLimits asks upstream's NodeVolumeLimits on the same framework.
func (r *rig) upstreamLimits(pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	r.t.Helper()
	p, err := nodevolumelimits.NewCSI(r.ctx, nil, r.framework.(fwk.Handle), feature.Features{EnableVolumeLimitScaling: true})
	if err != nil {
		r.t.Fatal(err)
	}
	return p.(fwk.FilterPlugin).Filter(r.ctx, nil, pod, info)
}

// TestAttached: which volumes take a place on the node, beside upstream's answer.
func TestAttached(t *testing.T) {
	inTree := fakeapi.PV("pv-ebs", "ebs", "1Gi", "")
	inTree.Spec.CSI = nil
	inTree.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}
	ebsClaim := fakeapi.BoundTo(fakeapi.PVC("ebs", "ebs", "1Gi"), "pv-ebs")
	inline := fakeapi.Pod("inline")
	inline.Spec.Volumes = []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-9"}}}}
	own := fakeapi.Pod("inline")
	own.Spec.Volumes = []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}}}
	onlyEBS := func(n int32) *storagev1.CSINode { return makeCSINode(map[string]int32{ebsDriver: n}) }
	required := fakeapi.Driver(driverName)
	required.Spec.PreventPodSchedulingIfMissing = new(true)
	tainted := fakeapi.Node("n1")
	tainted.Spec.Taints = []corev1.Taint{{Key: driverName + "/agent-not-ready", Effect: corev1.TaintEffectNoExecute}}
	const pass, full, missing = "", "Unschedulable: node(s) exceed max volume count: driver ", "UnschedulableAndUnresolvable: CSI driver is not installed on the node: driver "
	cases := map[string]struct {
		reason  string
		objects []runtime.Object
		on      []*corev1.Pod
		pod     *corev1.Pod
		want    string
		theirs  fwk.Code
	}{
		"room":                   {"one of two is used", nil, []*corev1.Pod{fakeapi.Pod("x", "a")}, fakeapi.Pod("p", "b"), pass, fwk.Success},
		"full":                   {"two of two are used", nil, []*corev1.Pod{fakeapi.Pod("x", "a", "b")}, fakeapi.Pod("p", "c"), full + driverName + ", 1 more asked", fwk.Unschedulable},
		"two at once":            {"the pod's volumes count together", nil, []*corev1.Pod{fakeapi.Pod("x", "a")}, fakeapi.Pod("p", "b", "c"), full + driverName + ", 2 more asked", fwk.Unschedulable},
		"shared":                 {"a volume that the node has adds nothing", nil, []*corev1.Pod{fakeapi.Pod("x", "a", "b")}, fakeapi.Pod("p", "a"), pass, fwk.Success},
		"left by another":        {"what is attached takes its place", []runtime.Object{fakeapi.Attachment("pv-a", "n1", driverName), fakeapi.Attachment("pv-b", "n1", driverName)}, nil, fakeapi.Pod("p", "c"), full + driverName + ", 1 more asked", fwk.Unschedulable},
		"attached and used":      {"and counts once", []runtime.Object{fakeapi.Attachment("pv-a", "n1", driverName)}, []*corev1.Pod{fakeapi.Pod("x", "a")}, fakeapi.Pod("p", "b"), pass, fwk.Success},
		"own, still attached":    {"the pod comes back to its volume (upstream counts it twice)", []runtime.Object{fakeapi.Attachment("pv-a", "n1", driverName), fakeapi.Attachment("pv-b", "n1", driverName)}, nil, fakeapi.Pod("p", "a", "b"), pass, fwk.Unschedulable},
		"attached elsewhere":     {"another node's", []runtime.Object{fakeapi.Attachment("pv-a", "n2", driverName), fakeapi.Attachment("pv-b", "n2", driverName)}, nil, fakeapi.Pod("p", "c"), pass, fwk.Success},
		"migrated volume":        {"counts for the driver that took it over", []runtime.Object{inTree, ebsClaim, onlyEBS(0)}, nil, fakeapi.Pod("p", "ebs"), full + ebsDriver + ", 1 more asked", fwk.Unschedulable},
		"migrated attachment":    {"counts too (upstream forgets it)", []runtime.Object{inTree, ebsClaim, onlyEBS(1), fakeapi.Attachment("pv-ebs", "n1", ebsDriver)}, nil, inline, full + ebsDriver + ", 1 more asked", fwk.Success},
		"inline in-tree volume":  {"counts for the driver that took it over", []runtime.Object{onlyEBS(0)}, nil, inline, full + ebsDriver + ", 1 more asked", fwk.Unschedulable},
		"inline, there already":  {"two pods of one disk", []runtime.Object{onlyEBS(1)}, []*corev1.Pod{inline}, inline, pass, fwk.Success},
		"inline CSI volume":      {"is never attached", []runtime.Object{makeCSINode(map[string]int32{driverName: 0})}, nil, own, pass, fwk.Success},
		"unbound, migrated":      {"by its class's provisioner", []runtime.Object{onlyEBS(0), fakeapi.PVC("new", "ebs", "1Gi")}, nil, fakeapi.Pod("p", "new"), full + ebsDriver + ", 1 more asked", fwk.Unschedulable},
		"no limit for driver":    {"any number", []runtime.Object{onlyEBS(0)}, []*corev1.Pod{fakeapi.Pod("x", "a", "b")}, fakeapi.Pod("p", "c"), pass, fwk.Success},
		"driver required":        {"eviction installs no driver (upstream: Unschedulable)", []runtime.Object{required, onlyEBS(0)}, nil, fakeapi.Pod("p", "a"), missing + driverName, fwk.Unschedulable},
		"driver required, there": {"then all is well", []runtime.Object{required}, nil, fakeapi.Pod("p", "a"), pass, fwk.Success},
		"startup taint":          {"the node waits for the driver (upstream knows no taint)", []runtime.Object{tainted, onlyEBS(0)}, nil, fakeapi.Pod("p", "a"), missing + driverName, fwk.Success},
		"startup taint, there":   {"the driver has come", []runtime.Object{tainted}, nil, fakeapi.Pod("p", "a"), pass, fwk.Success},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := attachCluster(t, tc.objects...)
			c.Put(tc.pod)
			for _, pod := range tc.on {
				pod.Spec.NodeName = "n1"
			}
			r := c.start(t.Context(), tc.on...)
			_, refused := r.judge(tc.pod)
			if diff := cmp.Diff(tc.want, refused["n1"]); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			info, err := r.framework.SnapshotSharedLister().NodeInfos().Get("n1")
			if err != nil {
				t.Fatal(err)
			}
			if s := r.upstreamLimits(tc.pod, info); s.Code() != tc.theirs {
				t.Errorf("upstream answers %v, not %v: what this case says of it is wrong", s, tc.theirs)
			}
		})
	}
}

// TestPreemptionOfAttached: the dry run without a pod is without its attachment;
// upstream still counts it.
func TestPreemptionOfAttached(t *testing.T) {
	running, pod := fakeapi.Pod("x", "a", "b"), fakeapi.Pod("p", "c")
	running.Spec.NodeName = "n1"
	r := attachCluster(t, fakeapi.Attachment("pv-a", "n1", driverName), fakeapi.Attachment("pv-b", "n1", driverName), pod).start(t.Context(), running)
	cy, refused := r.judge(pod)
	if len(refused) != 1 {
		t.Fatalf("a full node passes: %v", refused)
	}
	base, err := r.framework.SnapshotSharedLister().NodeInfos().Get("n1")
	if err != nil {
		t.Fatal(err)
	}
	dry := base.Snapshot()
	if err := dry.RemovePod(klog.FromContext(t.Context()), running); err != nil {
		t.Fatal(err)
	}
	if s := r.plugin.Filter(t.Context(), cy.state, pod, dry); !s.IsSuccess() {
		t.Errorf("evicting the other pod does not help: %v", s)
	}
	if s := r.upstreamLimits(pod, dry); s.IsSuccess() {
		t.Error("upstream frees the attachment of an evicted pod: the difference is gone")
	}
	if s := r.plugin.Filter(t.Context(), cy.state, pod, base); s.IsSuccess() {
		t.Error("after the dry run the node has room")
	}
}

// TestLimitVanishes: while the driver restarts its limit stands.
func TestLimitVanishes(t *testing.T) {
	running, pod := fakeapi.Pod("x", "a", "b"), fakeapi.Pod("p", "c")
	running.Spec.NodeName = "n1"
	r := attachCluster(t, pod).start(t.Context(), running)
	r.Put(makeCSINode(nil))
	r.seen(func() bool { _, kept := r.plugin.cache.Remembered("n1", driverName); return kept })
	if _, refused := r.judge(pod); len(refused) != 1 {
		t.Errorf("a limit that vanished is no limit: %v", refused)
	}
	info, err := r.framework.SnapshotSharedLister().NodeInfos().Get("n1")
	if err != nil {
		t.Fatal(err)
	}
	if s := r.upstreamLimits(pod, info); !s.IsSuccess() {
		t.Errorf("upstream remembers the limit: %v; the difference is gone", s)
	}
}
