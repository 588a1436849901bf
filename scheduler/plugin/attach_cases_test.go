package plugin

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

const pdDriver = "pd.csi.storage.gke.io"

// countedClaims are claims of every kind that takes a place on a node, or none:
// ebs0-3 and pd1-2 of two drivers, tree0-2 of the in-tree plugin that the first
// took over, path of one that nobody did, pending without a volume yet, orphan of
// a volume that is gone, odd of a class that is gone.
func countedClaims() []runtime.Object {
	objects := []runtime.Object{fakeapi.Class("ebs", ebsDriver), fakeapi.Class("pd", pdDriver), fakeapi.Class("tree", ebsPlugin), fakeapi.Class("path", noProvisioner)}
	of := func(name, class string, source corev1.PersistentVolumeSource) {
		pv := fakeapi.PV("pv-"+name, class, "1Gi", "")
		pv.Spec.PersistentVolumeSource = source
		pvc := fakeapi.PVC(name, class, "1Gi")
		objects = append(objects, takenBy(pv, pvc), fakeapi.BoundTo(pvc, pv.Name))
	}
	csi := func(driver, handle string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
	}
	for i := range 4 {
		of(fmt.Sprint("ebs", i), "ebs", csi(ebsDriver, fmt.Sprint("ebs-", i)))
	}
	for i := range 3 {
		of(fmt.Sprint("pd", i), "pd", csi(pdDriver, fmt.Sprint("pd-", i)))
		of(fmt.Sprint("tree", i), "tree", corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: fmt.Sprint("tree-", i)}})
	}
	of("path", "path", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}})
	return append(objects, fakeapi.PVC("pending", "ebs", "1Gi"), fakeapi.PVC("pending-tree", "tree", "1Gi"),
		fakeapi.BoundTo(fakeapi.PVC("orphan", "ebs", "1Gi"), "gone"), fakeapi.BoundTo(fakeapi.PVC("odd", "gone", "1Gi"), "gone"))
}

// with adds volumes to a pod.
func with(pod *corev1.Pod, sources ...corev1.VolumeSource) *corev1.Pod {
	for i, s := range sources {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: s})
	}
	return pod
}

// TestCounted: which volumes take a place on a node, and whether there is one left
// (upstream: TestCSILimits and TestVolumeLimitScalingGate).
func TestCounted(t *testing.T) {
	disk := func(id string) corev1.VolumeSource {
		return corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}
	}
	config := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}
	// made is the claim of an ephemeral volume of the pod.
	made := func(pod *corev1.Pod, volume string) *corev1.PersistentVolumeClaim {
		pvc := fakeapi.PVC(pod.Name+"-"+volume, "ebs", "1Gi")
		pvc.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
		return pvc
	}
	scratch, pair := with(fakeapi.Pod("scratch"), ephemeral), with(fakeapi.Pod("pair"), ephemeral, ephemeral)
	foreign := made(scratch, "v0")
	foreign.OwnerReferences = nil
	required := fakeapi.Driver(ebsDriver)
	required.Spec.PreventPodSchedulingIfMissing = new(true)
	optional := fakeapi.Driver(ebsDriver)
	two := func(n int32) map[string]int32 { return map[string]int32{ebsDriver: n, pdDriver: n} }
	ebs := func(n int32) map[string]int32 { return map[string]int32{ebsDriver: n} }
	on := func(pods ...*corev1.Pod) []*corev1.Pod { return pods }
	attached := func(names ...string) (out []runtime.Object) {
		for _, n := range names {
			out = append(out, fakeapi.Attachment("pv-"+n, "n1", ebsDriver))
		}
		return out
	}
	const (
		pass     = ""
		full     = "Unschedulable: node(s) exceed max volume count: driver " + ebsDriver + ", 1 more asked"
		missing  = "UnschedulableAndUnresolvable: CSI driver is not installed on the node: driver " + ebsDriver
		noClaim  = "UnschedulableAndUnresolvable: persistentvolumeclaim not found: default/scratch-v0, waiting for the ephemeral volume controller to create it"
		foreigns = "UnschedulableAndUnresolvable: persistentvolumeclaim was not created for the pod: claim default/scratch-v0 exists and belongs to another object"
	)
	cases := map[string]struct {
		reason string
		// limits are of n1's CSINode; nil has no CSINode, a negative one no limit.
		limits  map[string]int32
		objects []runtime.Object
		on      []*corev1.Pod
		pod     *corev1.Pod
		want    string
		theirs  fwk.Code
		// skips: PreFilter already says that there is nothing to judge.
		skips bool
	}{
		"attached without pods":         {reason: "what is attached takes its place", limits: ebs(2), objects: attached("ebs1", "ebs2"), pod: fakeapi.Pod("p", "ebs0"), want: full, theirs: fwk.Unschedulable},
		"attached, and room":            {reason: "one of two is used", limits: ebs(2), objects: attached("ebs1"), pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"room":                          {reason: "three of four are used", limits: ebs(4), on: on(fakeapi.Pod("x", "ebs3"), fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"no room":                       {reason: "three of two are used", limits: ebs(2), on: on(fakeapi.Pod("x", "ebs3"), fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: full, theirs: fwk.Unschedulable},
		"no limit":                      {reason: "the driver takes any number", limits: ebs(-1), on: on(fakeapi.Pod("x", "ebs3"), fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"pending":                       {reason: "a claim on its way takes its place", limits: ebs(3), on: on(fakeapi.Pod("x", "pending"), fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: full, theirs: fwk.Unschedulable},
		"one pending of two pods":       {reason: "it is one volume", limits: ebs(4), on: on(fakeapi.Pod("x", "pending"), fakeapi.Pod("z", "pending"), fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"volume gone":                   {reason: "its class tells the driver", limits: ebs(3), on: on(fakeapi.Pod("x", "orphan"), fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: full, theirs: fwk.Unschedulable},
		"volume and class gone":         {reason: "nothing tells the driver", limits: ebs(2), on: on(fakeapi.Pod("x", "ebs3"), fakeapi.Pod("z", "odd")), pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"of two drivers":                {reason: "each counts for its own", limits: two(2), on: on(fakeapi.Pod("x", "pd1", "pd2"), fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: full, theirs: fwk.Unschedulable},
		"another driver's":              {reason: "each counts for its own", limits: two(2), on: on(fakeapi.Pod("y", "ebs1", "ebs2", "ebs3")), pod: fakeapi.Pod("p", "pd1", "pd2"), want: pass},
		"in-tree":                       {reason: "the driver took them over", limits: ebs(2), on: on(fakeapi.Pod("x", "tree1", "tree2")), pod: fakeapi.Pod("p", "tree0"), want: full, theirs: fwk.Unschedulable},
		"in-tree, no CSINode":           {reason: "nothing is limited", on: on(fakeapi.Pod("x", "tree1", "tree2")), pod: with(fakeapi.Pod("p"), disk("inline")), want: pass},
		"in-tree and pending":           {reason: "it will be the driver's", limits: ebs(2), on: on(fakeapi.Pod("x", "tree1", "tree2")), pod: fakeapi.Pod("p", "pending-tree"), want: full, theirs: fwk.Unschedulable},
		"in-tree, no limit":             {reason: "the driver takes any number", limits: ebs(-1), on: on(fakeapi.Pod("x", "tree1", "tree2")), pod: fakeapi.Pod("p", "tree0"), want: pass},
		"in-tree, nobody took it over":  {reason: "it is not attached by CSI", limits: ebs(2), on: on(fakeapi.Pod("x", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "path"), want: pass},
		"inline":                        {reason: "the driver took the plugin over", limits: ebs(2), on: on(fakeapi.Pod("x", "tree1", "tree2")), pod: with(fakeapi.Pod("p"), disk("inline")), want: full, theirs: fwk.Unschedulable},
		"in-tree beside CSI":            {reason: "one driver's", limits: ebs(2), on: on(fakeapi.Pod("x", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "tree0"), want: full, theirs: fwk.Unschedulable},
		"inline beside both":            {reason: "one driver's", limits: ebs(3), on: on(fakeapi.Pod("x", "ebs1", "ebs2"), fakeapi.Pod("y", "tree0")), pod: with(fakeapi.Pod("p"), disk("inline")), want: full, theirs: fwk.Unschedulable},
		"inline, the same disk":         {reason: "it is there already", limits: ebs(3), on: on(fakeapi.Pod("x", "ebs1", "ebs2"), fakeapi.Pod("y", "tree0")), pod: with(fakeapi.Pod("p"), disk("ebs-1")), want: pass},
		"CSI beside in-tree":            {reason: "one driver's", limits: ebs(2), on: on(fakeapi.Pod("x", "tree1", "tree2")), pod: fakeapi.Pod("p", "ebs0"), want: full, theirs: fwk.Unschedulable},
		"ephemeral, claim missing":      {reason: "its controller is late", limits: ebs(-1), pod: scratch, want: noClaim, theirs: fwk.UnschedulableAndUnresolvable},
		"ephemeral, foreign claim":      {reason: "it is somebody else's (upstream: an error)", limits: ebs(-1), objects: []runtime.Object{foreign}, pod: scratch, want: foreigns, theirs: fwk.Error},
		"ephemeral":                     {reason: "a claim as any other", limits: ebs(-1), objects: []runtime.Object{made(scratch, "v0")}, pod: scratch, want: pass},
		"ephemeral, no room":            {reason: "a claim as any other", limits: ebs(2), objects: []runtime.Object{made(scratch, "v0")}, on: on(fakeapi.Pod("y", "ebs1", "ebs2")), pod: scratch, want: full, theirs: fwk.Unschedulable},
		"beside ephemeral ones":         {reason: "they take their places", limits: ebs(2), objects: []runtime.Object{made(pair, "v0"), made(pair, "v1")}, on: on(pair), pod: fakeapi.Pod("p", "ebs0"), want: full, theirs: fwk.Unschedulable},
		"beside ephemeral, no room":     {reason: "all take their places", limits: ebs(3), objects: []runtime.Object{made(scratch, "v0")}, on: on(scratch, fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: full, theirs: fwk.Unschedulable},
		"beside ephemeral, room":        {reason: "all take their places", limits: ebs(5), objects: []runtime.Object{made(scratch, "v0")}, on: on(scratch, fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"beside one whose claim is odd": {reason: "an ephemeral volume without its claim takes no place", limits: ebs(3), on: on(scratch, fakeapi.Pod("y", "ebs1", "ebs2")), pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"config and secret only":        {reason: "there is nothing to judge", limits: ebs(2), pod: with(fakeapi.Pod("p"), config, secret), want: pass, skips: true},
		"config, secret and a claim":    {reason: "the claim is judged", limits: ebs(2), pod: with(fakeapi.Pod("p", "ebs0"), config, secret), want: pass},
		"config, secret and ephemeral":  {reason: "the ephemeral volume is judged", limits: ebs(-1), pod: with(fakeapi.Pod("scratch"), ephemeral, config, secret), want: noClaim, theirs: fwk.UnschedulableAndUnresolvable},
		"config, secret and a disk":     {reason: "the disk is judged", limits: ebs(2), on: on(fakeapi.Pod("x", "tree1", "tree2")), pod: with(fakeapi.Pod("p"), config, secret, disk("inline")), want: full, theirs: fwk.Unschedulable},

		"driver absent, and optional":   {reason: "nobody asked for it to be there first", limits: map[string]int32{pdDriver: 1}, objects: []runtime.Object{optional}, pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"driver absent, and required":   {reason: "eviction installs no driver (upstream: Unschedulable)", limits: map[string]int32{pdDriver: 1}, objects: []runtime.Object{required}, pod: fakeapi.Pod("p", "ebs0"), want: missing, theirs: fwk.Unschedulable},
		"driver there, and required":    {reason: "all is well", limits: ebs(1), objects: []runtime.Object{required}, pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"driver absent, no CSIDriver":   {reason: "nobody asked for it to be there first", limits: map[string]int32{pdDriver: 1}, pod: fakeapi.Pod("p", "ebs0"), want: pass},
		"required, CSINode not there":   {reason: "the driver is on no node without one", objects: []runtime.Object{required}, pod: fakeapi.Pod("p", "ebs0"), want: missing, theirs: fwk.Unschedulable},
		"required by an in-tree volume": {reason: "the driver that took it over is meant", limits: map[string]int32{pdDriver: 1}, objects: []runtime.Object{required}, pod: fakeapi.Pod("p", "tree0"), want: missing, theirs: fwk.Unschedulable},
	}
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			objects := append(countedClaims(), fakeapi.Node("n1"))
			if tc.limits != nil {
				objects = append(objects, csiNodeOf(tc.limits))
			}
			c := newCluster(t, append(objects, tc.objects...)...)
			var running []*corev1.Pod
			for _, pod := range tc.on {
				pod = pod.DeepCopy()
				pod.Spec.NodeName = "n1"
				running = append(running, pod)
			}
			r := c.start(t.Context(), running...)
			_, refused := r.judge(tc.pod)
			if diff := cmp.Diff(tc.want, refused["n1"]); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			_, pre := r.plugin.PreFilter(t.Context(), framework.NewCycleState(), tc.pod, nil)
			if got := pre.Code() == fwk.Skip; got != tc.skips {
				t.Errorf("%s: PreFilter %v", tc.reason, pre)
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

// csiNodeOf is n1's CSINode, with the in-tree plugin handled by CSI; a negative
// limit is not published.
func csiNodeOf(limits map[string]int32) *storagev1.CSINode {
	n := makeCSINode(limits)
	n.Annotations = map[string]string{volume.AnnMigratedPlugins: ebsPlugin}
	for i := range n.Spec.Drivers {
		if *n.Spec.Drivers[i].Allocatable.Count < 0 {
			n.Spec.Drivers[i].Allocatable = nil
		}
	}
	return n
}
