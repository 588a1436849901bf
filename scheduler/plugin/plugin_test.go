package plugin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// dynamicCluster has two nodes with one pool each, which two classes share.
func dynamicCluster(t *testing.T, extra ...runtime.Object) *cluster {
	return newCluster(t, append([]runtime.Object{
		fakeapi.Node("n1"), fakeapi.Node("n2"), fakeapi.Driver(driverName), fakeapi.Class("fast", driverName), fakeapi.Class("slow", driverName),
		fakeapi.Capacity("fast", "n1", "8Gi", 5), fakeapi.Capacity("slow", "n1", "8Gi", 5),
		fakeapi.Capacity("fast", "n2", "20Gi", 5), fakeapi.Capacity("slow", "n2", "20Gi", 5),
	}, extra...)...)
}

const notEnough = "UnschedulableAndUnresolvable: node(s) did not have enough free storage: "

func TestProvisionedPod(t *testing.T) {
	pod := fakeapi.Pod("web", "a", "b")
	c := dynamicCluster(t, fakeapi.PVC("a", "fast", "6Gi"), fakeapi.PVC("b", "slow", "6Gi"), fakeapi.PVC("later", "slow", "10Gi"), pod)
	r := c.start(t.Context())

	cy, refused := r.judge(pod)
	want := map[string]string{"n1": notEnough + "claims default/a, default/b ask 12 GiB together; the freest pool of class fast has 20 GiB"}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Fatalf("two classes share n1's pool: (-want +got)\n%s", diff)
	}
	if s := cy.reserve("n2"); !s.IsSuccess() {
		t.Fatal(s)
	}

	// The next pod sees what was promised, before anything is in the API.
	_, refused = r.judge(fakeapi.Pod("other", "later"))
	want = map[string]string{
		"n1": notEnough + "claim default/later asks 10 GiB; the freest pool of class slow has 8 GiB",
		"n2": notEnough + "claim default/later asks 10 GiB; the freest pool of class slow has 8 GiB",
	}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Errorf("the hold of a reserved pod: (-want +got)\n%s", diff)
	}

	c.PVController(t.Context())
	if s := cy.bind(t.Context(), "n2"); !s.IsSuccess() {
		t.Fatal(s)
	}
	for _, name := range []string{"a", "b"} {
		pvc := c.Claim(name)
		if pvc.Annotations[volume.AnnSelectedNode] != "n2" || pvc.Spec.VolumeName != volume.PVName("uid-"+name) {
			t.Errorf("claim %s: selected %q, volume %q", name, pvc.Annotations[volume.AnnSelectedNode], pvc.Spec.VolumeName)
		}
	}

	// The volumes exist and are not in the published capacity yet: still held.
	if _, refused = r.judge(fakeapi.Pod("other", "later")); len(refused) != 2 {
		t.Errorf("published capacity does not contain the volumes yet, but only %v are refused", keys(refused))
	}
	// The capacity passes their numbers: nothing is counted twice.
	c.Put(fakeapi.Capacity("fast", "n2", "12Gi", 103))
	c.Put(fakeapi.Capacity("slow", "n2", "12Gi", 103))
	r.seen(func() bool {
		most, _ := r.plugin.cache.Snapshot().MostAvailable(&binding.Class{Name: "slow"})
		return most == 12*volume.GiB
	})
	if _, refused = r.judge(fakeapi.Pod("other", "later")); len(refused) != 1 {
		t.Errorf("10 of 12 GiB are asked on n2, but %v are refused", keys(refused))
	}
}

func TestStaticPod(t *testing.T) {
	pod := fakeapi.Pod("db", "data")
	c := newCluster(t, fakeapi.Node("n1"), fakeapi.Node("n2"), fakeapi.Class("local", "kubernetes.io/no-provisioner"),
		fakeapi.PV("small", "local", "2Gi", "n1"), fakeapi.PV("large", "local", "9Gi", "n1"), fakeapi.PVC("data", "local", "1Gi"), fakeapi.PVC("rival", "local", "1Gi"), pod)
	r := c.start(t.Context())
	cy, refused := r.judge(pod)
	want := map[string]string{"n2": "UnschedulableAndUnresolvable: node(s) didn't find available persistent volumes to bind: claim default/data asks 1 GiB"}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}

	// Reserve, Unreserve, Reserve with one state, as gang cycles do: the volume
	// is taken, free, and taken again.
	other := fakeapi.Pod("other", "rival")
	chosen := func() string {
		t.Helper()
		o, _ := r.judge(other)
		s, err := readState(o.state)
		if err != nil {
			t.Fatal(err)
		}
		v := binding.Find(s.question.Question, s.question.Node(fakeapi.Node("n1")))
		return v.Bindings[0].Volume.Name
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "small"},
		{func() { cy.reserve("n1") }, "large"},
		{func() { cy.unreserve() }, "small"},
		{func() { cy.unreserve() }, "small"},
		{func() { cy.reserve("n1") }, "large"},
		{func() { cy.reserve("n1") }, "large"},
	} {
		step.do()
		if got := chosen(); got != step.want {
			t.Fatalf("a rival would get %s, want %s", got, step.want)
		}
	}

	c.PVController(t.Context())
	if s := cy.bind(t.Context(), "n1"); !s.IsSuccess() {
		t.Fatal(s)
	}
	pv := c.Volume("small")
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Name != "data" || ref.UID != "uid-data" || ref.Kind != "PersistentVolumeClaim" {
		t.Errorf("claimRef %+v", ref)
	}
	if pv.Annotations[volume.AnnBoundByController] != "yes" {
		t.Error("the PV controller could not undo this binding")
	}
	if got := chosen(); got != "large" {
		t.Errorf("a bound volume is offered again: %s", got)
	}
	// All is bound: a pod that is scheduled again has nothing to do.
	again, refused := r.judge(pod)
	if diff := cmp.Diff([]string{"n2"}, keys(refused)); diff != "" {
		t.Fatalf("a bound volume ties the pod to its node: (-want +got)\n%s", diff)
	}
	if s := again.reserve("n1"); !s.IsSuccess() {
		t.Fatal(s)
	}
	if s := again.framework.RunPreBindPreFlights(t.Context(), again.state, pod, "n1"); s.Code() != fwk.Skip {
		t.Errorf("PreBindPreFlight of a bound pod: %v", s)
	}
}

func TestPreFilterRefuses(t *testing.T) {
	change := func(pvc *corev1.PersistentVolumeClaim, f func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		f(pvc)
		return pvc
	}
	immediate := fakeapi.Class("immediate", driverName)
	immediate.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	noMode := fakeapi.Class("nomode", driverName)
	noMode.VolumeBindingMode = nil
	now := metav1.Now()
	scratch := fakeapi.Pod("p")
	scratch.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	const uau = "UnschedulableAndUnresolvable: "
	cases := map[string]struct {
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		want  string
	}{
		"missing":           {pod: fakeapi.Pod("p", "a"), want: uau + "persistentvolumeclaim not found: default/a"},
		"ephemeral missing": {pod: scratch, want: uau + "persistentvolumeclaim not found: default/p-scratch, waiting for the ephemeral volume controller to create it"},
		"not owned":         {pod: scratch, claim: fakeapi.PVC("p-scratch", "fast", "1Gi"), want: uau + "persistentvolumeclaim was not created for the pod: claim default/p-scratch exists and belongs to another object"},
		"lost": {pod: fakeapi.Pod("p", "a"), claim: change(fakeapi.PVC("a", "fast", "1Gi"), func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase, c.Spec.VolumeName = corev1.ClaimLost, "gone"
		}), want: uau + "persistentvolumeclaim bound to non-existent persistentvolume: claim default/a, persistentvolume gone"},
		"deleting": {pod: fakeapi.Pod("p", "a"), claim: change(fakeapi.PVC("a", "fast", "1Gi"), func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp, c.Finalizers = &now, []string{"f"}
		}), want: uau + "persistentvolumeclaim is being deleted: claim default/a"},
		"immediate":     {pod: fakeapi.Pod("p", "a"), claim: fakeapi.PVC("a", "immediate", "1Gi"), want: uau + "pod has unbound immediate PersistentVolumeClaims: claim default/a"},
		"no such class": {pod: fakeapi.Pod("p", "a"), claim: fakeapi.PVC("a", "none", "1Gi"), want: uau + `pod has unbound immediate PersistentVolumeClaims: claim default/a: its StorageClass "none" does not exist`},
		"no class": {pod: fakeapi.Pod("p", "a"), claim: change(fakeapi.PVC("a", "", "1Gi"), func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = nil
		}), want: uau + "pod has unbound immediate PersistentVolumeClaims: claim default/a: names no StorageClass, and no volume is bound to it"},
		"half bound": {pod: fakeapi.Pod("p", "a"), claim: change(fakeapi.PVC("a", "fast", "1Gi"), func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName = "pv"
		}), want: uau + "pod has unbound immediate PersistentVolumeClaims: claim default/a: waits for the PV controller to bind it to pv"},
		"no binding mode": {
			pod: fakeapi.Pod("p", "a"), claim: fakeapi.PVC("a", "nomode", "1Gi"),
			want: `Error: running PreFilter plugin "BerthVolumes": storage class "nomode": volumeBindingMode is not set; set it to WaitForFirstConsumer or Immediate`,
		},
		"bound to nothing": {
			pod: fakeapi.Pod("p", "a"), claim: fakeapi.BoundTo(fakeapi.PVC("a", "fast", "1Gi"), "gone"),
			want: uau + "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s): claim default/a is bound to gone",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, fakeapi.Node("n1"), fakeapi.Class("fast", driverName), immediate, noMode)
			if tc.claim != nil {
				c.Put(tc.claim)
			}
			_, refused := c.start(t.Context()).judge(tc.pod)
			if diff := cmp.Diff(map[string]string{"n1": tc.want}, refused); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestPodWithoutClaims(t *testing.T) {
	pod := fakeapi.Pod("p")
	pod.Spec.Volumes = []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	r := newCluster(t, fakeapi.Node("n1")).start(t.Context())
	state := framework.NewCycleState()
	if _, s := r.plugin.PreFilter(t.Context(), state, pod, nil); s.Code() != fwk.Skip {
		t.Errorf("PreFilter: %v", s)
	}
	if s := r.plugin.PreScore(t.Context(), state, pod, nil); s.Code() != fwk.Skip {
		t.Errorf("PreScore: %v", s)
	}
	if s := r.plugin.Reserve(t.Context(), state, pod, "n1"); !s.IsSuccess() {
		t.Errorf("Reserve: %v", s)
	}
	if _, s := r.plugin.PreBindPreFlight(t.Context(), state, pod, "n1"); s.Code() != fwk.Skip {
		t.Errorf("PreBindPreFlight: %v", s)
	}
	r.plugin.Unreserve(t.Context(), state, pod, "n1")
	fragments, s := r.plugin.SignPod(t.Context(), pod)
	if !s.IsSuccess() || len(fragments) != 1 || fragments[0].Key != fwk.VolumesSignerName {
		t.Errorf("SignPod: %v %v", fragments, s)
	}
}

func TestScorePrefersTheEmptiest(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "4Gi"), pod).start(t.Context())
	cy, refused := r.judge(pod)
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	infos, err := r.framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	if s := r.framework.RunPreScorePlugins(t.Context(), cy.state, pod, infos); !s.IsSuccess() {
		t.Fatal(s)
	}
	scores, s := r.framework.RunScorePlugins(t.Context(), cy.state, pod, infos)
	if !s.IsSuccess() {
		t.Fatal(s)
	}
	got := map[string]int64{}
	for _, n := range scores {
		got[n.Name] = n.TotalScore
	}
	if diff := cmp.Diff(map[string]int64{"n1": 50, "n2": 80}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestReserveWithoutFilter(t *testing.T) {
	pod := fakeapi.Pod("web", "a", "b")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "6Gi"), fakeapi.PVC("b", "slow", "6Gi"), pod).start(t.Context())
	cy := &cycle{rig: r, pod: pod, state: framework.NewCycleState()}
	if _, s, _ := r.framework.RunPreFilterPlugins(t.Context(), cy.state, pod); !s.IsSuccess() {
		t.Fatal(s)
	}
	if s := cy.reserve("n1"); s.IsSuccess() {
		t.Error("a node that Filter would refuse was reserved")
	}
	if s := cy.reserve("n2"); !s.IsSuccess() {
		t.Errorf("a node that Filter would pass was refused: %v", s)
	}
}

// TestSharedClaim: the second pod of a claim goes where the first one's
// reservation is, and its part outlives the first's Unreserve.
func TestSharedClaim(t *testing.T) {
	one, two := fakeapi.Pod("one", "a"), fakeapi.Pod("two", "a")
	r := dynamicCluster(t, fakeapi.PVC("a", "fast", "6Gi"), one, two).start(t.Context())
	first, _ := r.judge(one)
	if s := first.reserve("n1"); !s.IsSuccess() {
		t.Fatal(s)
	}
	second, refused := r.judge(two)
	want := map[string]string{"n2": "UnschedulableAndUnresolvable: node(s) didn't find available persistent volumes to bind: claim default/a is being provisioned on n1"}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	if s := second.reserve("n1"); !s.IsSuccess() {
		t.Fatal(s)
	}
	first.unreserve()
	if _, refused = r.judge(two); len(refused) != 1 {
		t.Errorf("the second pod's reservation ended with the first's: %v", refused)
	}
	second.unreserve()
	if _, refused = r.judge(two); len(refused) != 0 {
		t.Errorf("nobody holds the claim: %v", refused)
	}
}

func TestAttachLimits(t *testing.T) {
	csiNode := func(count *int32, drivers ...string) *storagev1.CSINode {
		n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		for _, d := range drivers {
			n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: d, NodeID: "n1", Allocatable: &storagev1.VolumeNodeResources{Count: count}})
		}
		return n
	}
	needed := fakeapi.Driver(driverName)
	needed.Spec.PreventPodSchedulingIfMissing = new(true)
	cases := map[string]struct {
		reason  string
		csiNode *storagev1.CSINode
		driver  *storagev1.CSIDriver
		pod     *corev1.Pod
		want    map[string]string
	}{
		"room":      {"one of two is used", csiNode(ptr.To[int32](2), driverName), nil, fakeapi.Pod("p", "b"), map[string]string{}},
		"full":      {"eviction helps, so the node is not unresolvable", csiNode(ptr.To[int32](1), driverName), nil, fakeapi.Pod("p", "b"), map[string]string{"n1": "Unschedulable: node(s) exceed max volume count: driver " + driverName + ", 1 more asked"}},
		"shared":    {"a volume that the node has adds nothing", csiNode(ptr.To[int32](1), driverName), nil, fakeapi.Pod("p", "a"), map[string]string{}},
		"unbound":   {"a claim to be provisioned counts", csiNode(ptr.To[int32](1), driverName), nil, fakeapi.Pod("p", "new"), map[string]string{"n1": "Unschedulable: node(s) exceed max volume count: driver " + driverName + ", 1 more asked"}},
		"unlimited": {"a driver without a count is not limited", csiNode(nil, driverName), nil, fakeapi.Pod("p", "b"), map[string]string{}},
		"no driver": {"nobody asked for the driver to be there first", nil, nil, fakeapi.Pod("p", "b"), map[string]string{}},
		"missing":   {"the driver must be there first; eviction does not help", csiNode(nil, "other"), needed, fakeapi.Pod("p", "b"), map[string]string{"n1": "UnschedulableAndUnresolvable: CSI driver is not installed on the node: driver " + driverName}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			running := fakeapi.Pod("running", "a")
			running.Spec.NodeName = "n1"
			c := newCluster(t, fakeapi.Node("n1"), fakeapi.Class("fast", driverName), fakeapi.PV("pv-a", "fast", "1Gi", ""), fakeapi.PV("pv-b", "fast", "1Gi", ""),
				fakeapi.BoundTo(fakeapi.PVC("a", "fast", "1Gi"), "pv-a"), fakeapi.BoundTo(fakeapi.PVC("b", "fast", "1Gi"), "pv-b"), fakeapi.PVC("new", "fast", "1Gi"))
			if tc.csiNode != nil {
				c.Put(tc.csiNode)
			}
			if tc.driver != nil {
				c.Put(tc.driver)
			}
			r := c.start(t.Context(), running)
			cy, refused := r.judge(tc.pod)
			if diff := cmp.Diff(tc.want, refused); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			// Preemption's dry run: the same node without its pod.
			if name == "full" {
				info, err := r.framework.SnapshotSharedLister().NodeInfos().Get("n1")
				if err != nil {
					t.Fatal(err)
				}
				info = info.Snapshot()
				if err := info.RemovePod(klog.FromContext(t.Context()), running); err != nil {
					t.Fatal(err)
				}
				if s := r.plugin.Filter(t.Context(), cy.state, tc.pod, info); !s.IsSuccess() {
					t.Errorf("evicting the other pod does not help: %v", s)
				}
			}
		})
	}
}

// activator records the pods that are retried.
type activator struct{ pods []string }

func (a *activator) Activate(_ klog.Logger, pods map[string]*corev1.Pod) { a.pods = keys(pods) }

func TestProfilesShareOneCache(t *testing.T) {
	scheduled, deleting := fakeapi.Pod("scheduled", "a"), fakeapi.Pod("deleting", "a")
	scheduled.Spec.NodeName = "n1"
	deleting.DeletionTimestamp, deleting.Finalizers = new(metav1.Now()), []string{"f"}
	pods := []*corev1.Pod{fakeapi.Pod("waiting", "a"), fakeapi.Pod("placed", "b"), fakeapi.Pod("no-claims"), scheduled, deleting}
	c := newCluster(t, fakeapi.Node("n1"), fakeapi.Class("fast", driverName), fakeapi.PVC("b", "fast", "1Gi"))
	for _, pod := range pods {
		c.Put(pod)
	}
	a := &activator{}
	h, err := frameworkruntime.NewFramework(t.Context(), nil, nil, frameworkruntime.WithClientSet(c.Client),
		frameworkruntime.WithInformerFactory(c.Factory), frameworkruntime.WithPodActivator(a))
	if err != nil {
		t.Fatal(err)
	}
	f := new(Factory)
	var plugins []*Plugin
	for range 2 {
		p, err := f.New(t.Context(), nil, h)
		if err != nil {
			t.Fatal(err)
		}
		plugins = append(plugins, p.(*Plugin))
	}
	if plugins[0].cache != plugins[1].cache {
		t.Error("two profiles of one scheduler keep two ledgers: they would promise the same bytes twice")
	}
	differing := &runtime.Unknown{Raw: []byte(`{"attachLimitGraceSeconds": 7}`)}
	if _, err := f.New(t.Context(), differing, h); err == nil || !strings.Contains(err.Error(), "attachLimitGraceSeconds") {
		t.Errorf("two profiles differ in what they share, and the error is %v", err)
	}
	other := newCluster(t, fakeapi.Node("n1"))
	h2, err := frameworkruntime.NewFramework(t.Context(), nil, nil, frameworkruntime.WithClientSet(other.Client), frameworkruntime.WithInformerFactory(other.Factory))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.New(t.Context(), nil, h2)
	if err != nil {
		t.Fatal(err)
	}
	if p.(*Plugin).cache == plugins[0].cache {
		t.Error("two schedulers share one cache")
	}
	c.Factory.Start(t.Context().Done())
	c.Factory.WaitForCacheSync(t.Context().Done())
	for _, pod := range pods {
		plugins[1].PreFilter(t.Context(), framework.NewCycleState(), pod, nil)
	}
	plugins[0].waiting.forget("uid-placed")
	(&shared{waiting: plugins[0].waiting, of: c.Factory}).activate(t.Context(), h)
	if diff := cmp.Diff([]string{"default/waiting"}, a.pods); diff != "" {
		t.Errorf("retried after a hold ended by time: (-want +got)\n%s", diff)
	}
}

// TestArgs: a profile's pluginConfig; scheduler/args has what stands in it.
func TestArgs(t *testing.T) {
	got, err := decodeArgs(nil)
	if err != nil || got.BindTimeout() != 600*time.Second {
		t.Errorf("without pluginConfig: %v, bind timeout %s; want upstream's default", err, got.BindTimeout())
	}
	if _, err := decodeArgs(&corev1.Pod{}); err == nil || !strings.Contains(err.Error(), "want runtime.Unknown, got *v1.Pod") {
		t.Errorf("an object of another kind: %v", err)
	}
	if _, err := new(Factory).New(t.Context(), &runtime.Unknown{Raw: []byte(`{"x":1}`)}, nil); err == nil || !strings.Contains(err.Error(), "args of plugin "+Name) {
		t.Errorf("the error does not name the plugin: %v", err)
	}
}
