package desired

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

// objects is a small API. What is in unread exists, but has not arrived yet.
type objects struct {
	pods   []*corev1.Pod
	claims map[string]*corev1.PersistentVolumeClaim
	pvs    map[string]*corev1.PersistentVolume
	driver *storagev1.CSIDriver
	node   *corev1.Node
	unread map[string]bool
}

func (o *objects) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, bool) {
	return o.claims[namespace+"/"+name], !o.unread[name]
}

func (o *objects) PersistentVolume(name string) (*corev1.PersistentVolume, bool) {
	return o.pvs[name], !o.unread[name]
}
func (o *objects) CSIDriver(string) *storagev1.CSIDriver { return o.driver }
func (o *objects) Node() *corev1.Node                    { return o.node }

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

// good is a pod with one bound volume, which nothing is wrong with.
func good() *objects {
	return &objects{
		pods: []*corev1.Pod{makePod("web-0", "data")},
		claims: map[string]*corev1.PersistentVolumeClaim{"default/data": {
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim-uid"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}},
		pvs: map[string]*corev1.PersistentVolume{"pv1": {
			ObjectMeta: metav1.ObjectMeta{Name: "pv1"},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef:     &corev1.ObjectReference{UID: "claim-uid"},
				AccessModes:  []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany},
				Capacity:     corev1.ResourceList{corev1.ResourceStorage: quantity(9)},
				MountOptions: []string{"noatime"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: "d.example", VolumeHandle: "h1", FSType: "ext4", VolumeAttributes: map[string]string{"a": "b"},
					NodeStageSecretRef: &corev1.SecretReference{Namespace: "s", Name: "stage"},
				}},
			},
		}},
		driver: &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}},
		node:   &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "z1"}}},
		unread: map[string]bool{},
	}
}

func makePod(name, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName: "n1", ServiceAccountName: "sa",
			Containers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "v"}}}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}

func (o *objects) claim() *corev1.PersistentVolumeClaim { return o.claims["default/data"] }
func (o *objects) pv() *corev1.PersistentVolume         { return o.pvs["pv1"] }
func (o *objects) spec() *corev1.PodSpec                { return &o.pods[0].Spec }

var key = volume.Key{Driver: "d.example", Handle: "h1"}

// goodWanted is what good leads to.
func goodWanted() *plan.Wanted {
	return &plan.Wanted{
		Key: key, PV: "pv1", PVC: plan.Claim{Namespace: "default", Name: "data", UID: "claim-uid"},
		FSType: "ext4", MountOptions: []string{"noatime"}, AccessMode: "ReadWriteOnce", Context: map[string]string{"a": "b"},
		StageSecret: plan.SecretRef{Namespace: "s", Name: "stage"}, ChownToFSGroup: true,
		Pods: []plan.PodUse{{Pod: plan.Pod{Namespace: "default", Name: "web-0", UID: "uid-web-0"}, Name: "v"}},
	}
}

func TestWanted(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*objects)
		want   func(*plan.Wanted)
	}{
		"Plain":         {"nothing special", func(*objects) {}, func(*plan.Wanted) {}},
		"NoCSIDriver":   {"without a CSIDriver attaching is needed", func(o *objects) { o.driver = nil }, func(w *plan.Wanted) { w.NeedsAttach = true }},
		"AttachDefault": {"attachRequired defaults to true", func(o *objects) { o.driver.Spec.AttachRequired = nil }, func(w *plan.Wanted) { w.NeedsAttach = true }},
		"ReadOnlyPod": {
			"the pod asks for it", func(o *objects) { o.spec().Volumes[0].PersistentVolumeClaim.ReadOnly = true },
			func(w *plan.Wanted) { w.Pods[0].ReadOnly = true },
		},
		"ReadOnlyVolume": {"the volume asks for it", func(o *objects) { o.pv().Spec.CSI.ReadOnly = true }, func(w *plan.Wanted) { w.Pods[0].ReadOnly = true }},
		"Block": {"a raw device", func(o *objects) {
			o.pv().Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
			o.spec().Containers = []corev1.Container{{VolumeDevices: []corev1.VolumeDevice{{Name: "v"}}}}
		}, func(w *plan.Wanted) { w.Block = true }},
		"FSGroup": {"the pod's group and policy", func(o *objects) {
			o.spec().SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(7)), FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch)}
		}, func(w *plan.Wanted) { w.Pods[0].FSGroup, w.Pods[0].FSGroupIfRootDiffers = new(int64(7)), true }},
		"FSGroupPolicyNone": {
			"the driver forbids it", func(o *objects) { o.driver.Spec.FSGroupPolicy = new(storagev1.NoneFSGroupPolicy) },
			func(w *plan.Wanted) { w.ChownToFSGroup = false },
		},
		"FSGroupDefaultShared": {"a shared volume is left alone", func(o *objects) {
			o.pv().Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, func(w *plan.Wanted) { w.ChownToFSGroup, w.AccessMode = false, "ReadWriteMany" }},
		"FSGroupFile": {"the driver wants it always", func(o *objects) {
			o.driver.Spec.FSGroupPolicy = new(storagev1.FileFSGroupPolicy)
			o.pv().Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, func(w *plan.Wanted) { w.AccessMode = "ReadWriteMany" }},
		"PodInfo": {"the driver asks who uses it", func(o *objects) { o.driver.Spec.PodInfoOnMount = new(true) }, func(w *plan.Wanted) {
			w.Pods[0].PodInfo = map[string]string{
				"csi.storage.k8s.io/pod.name": "web-0", "csi.storage.k8s.io/pod.namespace": "default", "csi.storage.k8s.io/pod.uid": "uid-web-0",
				"csi.storage.k8s.io/serviceAccount.name": "sa", "csi.storage.k8s.io/ephemeral": "false",
			}
		}},
		"Growing": {"the node's part is due", func(o *objects) {
			o.claim().Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: quantity(8)}
			o.claim().Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
		}, func(w *plan.Wanted) { w.GrowTo = 8 }},
		"ControllerGrows": {"the controller's part is not the node's", func(o *objects) {
			o.claim().Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInProgress}
		}, func(*plan.Wanted) {}},
		"ProtectedClaim": {"a claim that only waits for its pods still serves them", func(o *objects) {
			o.claim().DeletionTimestamp, o.claim().Finalizers = &metav1.Time{}, []string{pvcProtection}
		}, func(*plan.Wanted) {}},
		"Twice": {"one claim under two names is one publication", func(o *objects) {
			o.spec().Volumes = append(o.spec().Volumes, corev1.Volume{Name: "w", VolumeSource: o.spec().Volumes[0].VolumeSource})
			o.spec().Containers[0].VolumeMounts = append(o.spec().Containers[0].VolumeMounts, corev1.VolumeMount{Name: "w"})
		}, func(*plan.Wanted) {}},
		"Shared": {
			"two pods, in the order of their UIDs", func(o *objects) { o.pods = append([]*corev1.Pod{makePod("web-1", "data")}, o.pods...) },
			func(w *plan.Wanted) {
				w.Pods = append(w.Pods, plan.PodUse{Pod: plan.Pod{Namespace: "default", Name: "web-1", UID: "uid-web-1"}, Name: "v"})
			},
		},
		"GenericEphemeral": {"a claim of the pod's own", func(o *objects) {
			o.spec().Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
			c := o.claim()
			c.Name, c.OwnerReferences = "web-0-v", []metav1.OwnerReference{{UID: "uid-web-0", Controller: new(true)}}
			o.claims = map[string]*corev1.PersistentVolumeClaim{"default/web-0-v": c}
		}, func(w *plan.Wanted) { w.PVC.Name = "web-0-v" }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := good()
			c.change(o)
			want := goodWanted()
			c.want(want)
			got := build(o.pods, o)
			if diff := cmp.Diff(map[volume.Key]*plan.Wanted{key: want}, got.Volumes); diff != "" || !got.Settled {
				t.Errorf("%s: settled %v (-want +got):\n%s", c.reason, got.Settled, diff)
			}
		})
	}
}

func TestProblems(t *testing.T) {
	cases := map[string]struct {
		reason      string
		change      func(*objects)
		want        volume.Reason
		wantDetail  string
		wantPending bool
	}{
		"NoClaim":      {"it does not exist", func(o *objects) { clear(o.claims) }, volume.ReasonClaimMissing, "default/data", false},
		"ClaimUnread":  {"not read is not missing", func(o *objects) { o.unread["data"] = true }, volume.ReasonPending, "default/data", true},
		"Unbound":      {"still pending", func(o *objects) { o.claim().Status.Phase = corev1.ClaimPending }, volume.ReasonClaimUnbound, "default/data", false},
		"NoVolumeName": {"bound to nothing", func(o *objects) { o.claim().Spec.VolumeName = "" }, volume.ReasonClaimUnbound, "default/data", false},
		"Lost":         {"its volume vanished", func(o *objects) { o.claim().Status.Phase = corev1.ClaimLost }, volume.ReasonClaimLost, "default/data", false},
		"Deleting":     {"it may go at any moment", func(o *objects) { o.claim().DeletionTimestamp = &metav1.Time{} }, volume.ReasonClaimDeleting, "default/data", false},
		"NoPV":         {"it does not exist", func(o *objects) { clear(o.pvs) }, volume.ReasonVolumeMissing, "pv1", false},
		"PVUnread":     {"not read is not missing", func(o *objects) { o.unread["pv1"] = true }, volume.ReasonPending, "pv1", true},
		"OtherClaim":   {"an older claim of the same name", func(o *objects) { o.pv().Spec.ClaimRef.UID = "older" }, volume.ReasonVolumeTaken, "pv1", false},
		"NotCSI":       {"another kind of volume", func(o *objects) { o.pv().Spec.CSI = nil }, volume.ReasonNotCSI, "pv1", false},
		"Inline": {"not served yet", func(o *objects) {
			o.spec().Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "x"}}
		}, volume.ReasonNotCSI, "inline", false},
		"BlockMounted": {"a device cannot be mounted", func(o *objects) { o.pv().Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }, volume.ReasonVolumeMode, "volumeMounts", false},
		"FileAsDevice": {"a filesystem is no device", func(o *objects) {
			o.spec().Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "v"}}
		}, volume.ReasonVolumeMode, "volumeDevices", false},
		"NoNode": {"the provider has not made it yet", func(o *objects) { o.node = nil }, volume.ReasonPending, "Node", false},
		"Affinity": {"the volume is elsewhere", func(o *objects) {
			o.pv().Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z2"}}},
			}}}}
		}, volume.ReasonNodeAffinity, "pv1", false},
		"NotOwned": {"a claim that happens to have the name", func(o *objects) {
			o.spec().Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
			o.claims["default/web-0-v"] = o.claim()
		}, volume.ReasonClaimNotOwned, "default/web-0-v", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := good()
			c.change(o)
			got := build(o.pods, o)
			v := got.Pods["uid-web-0"].Volumes
			if len(v) != 1 || v[0].Problem == nil || v[0].Problem.Reason != c.want || !strings.Contains(v[0].Problem.Detail, c.wantDetail) {
				t.Errorf("%s: got %v, want %s with %q", c.reason, v, c.want, c.wantDetail)
			}
			if len(got.Volumes) != 0 || got.Settled == c.wantPending {
				t.Errorf("%s: wanted %v, settled %v", c.reason, got.Volumes, got.Settled)
			}
		})
	}
}

func TestUnusedVolumesAndOtherKindsAreIgnored(t *testing.T) {
	o := good()
	o.spec().Volumes = append(o.spec().Volumes,
		corev1.Volume{Name: "unused", VolumeSource: o.spec().Volumes[0].VolumeSource},
		corev1.Volume{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	o.spec().InitContainers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "tmp"}}}}
	got := build(o.pods, o).Pods["uid-web-0"].Volumes
	want := []PodVolume{{Name: "v", Key: key, PV: "pv1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOneHandleUnderTwoNames(t *testing.T) {
	o := good()
	claim, pv := o.claim().DeepCopy(), o.pv().DeepCopy()
	claim.Name, claim.UID, claim.Spec.VolumeName = "other", "other-uid", "pv2"
	pv.Name, pv.Spec.ClaimRef.UID = "pv2", "other-uid"
	o.claims["default/other"], o.pvs["pv2"] = claim, pv
	o.pods = append(o.pods, makePod("web-1", "other"))
	got := build(o.pods, o)
	if w := got.Volumes[key]; len(w.Pods) != 1 || w.PV != "pv1" {
		t.Errorf("wanted %+v", w)
	}
	if p := got.Pods["uid-web-1"].Volumes[0].Problem; p == nil || p.Reason != volume.ReasonVolumeInUse {
		t.Errorf("the second name: %v", p)
	}
}

func TestPodStates(t *testing.T) {
	o := good()
	deleting, done, failedAndDeleting := makePod("a", "data"), makePod("b", "data"), makePod("c", "data")
	deleting.DeletionTimestamp = &metav1.Time{}
	done.Status.Phase = corev1.PodSucceeded
	failedAndDeleting.Status.Phase, failedAndDeleting.DeletionTimestamp = corev1.PodFailed, &metav1.Time{}
	got := build(append(o.pods, deleting, done, failedAndDeleting), o)
	for uid, want := range map[string]plan.PodState{
		"uid-web-0": plan.PodActive, "uid-a": plan.PodDeleting, "uid-b": plan.PodTerminal, "uid-c": plan.PodTerminal, "nobody": plan.PodAbsent,
	} {
		if state := got.PodState(uid); state != want {
			t.Errorf("%s is %s, want %s", uid, state, want)
		}
	}
	if n := len(got.Volumes[key].Pods); n != 1 {
		t.Errorf("%d pods want the volume; only one may run", n)
	}
	if state := (&Snapshot{}).PodState("uid-a"); state != plan.PodUnknown {
		t.Errorf("before the list is read a pod is %s", state)
	}
}

// TestSource follows real informers over a fake API: a claim that appears late,
// its volume, and the end of the watches with the pod.
func TestSource(t *testing.T) {
	o := good()
	api := fake.NewClientset(o.node, o.driver)
	ctx, cancel := context.WithCancel(t.Context())
	snapshots := make(chan *Snapshot)
	s := NewSource("n1", api, func(_, now *Snapshot) {
		select {
		case snapshots <- now:
		case <-ctx.Done():
		}
	})
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	await := func(what string, so func(*Snapshot) bool) {
		t.Helper()
		for {
			select {
			case now := <-snapshots:
				if so(now) {
					return
				}
			case <-ctx.Done():
				t.Fatalf("never: %s", what)
			}
		}
	}
	problem := func(r volume.Reason) func(*Snapshot) bool {
		return func(now *Snapshot) bool {
			v := now.Pods["uid-web-0"].Volumes
			return len(v) == 1 && v[0].Problem != nil && v[0].Problem.Reason == r
		}
	}
	await("the lists are read", func(now *Snapshot) bool { return now.Synced })
	elsewhere := makePod("other", "data")
	elsewhere.Spec.NodeName = "n2"
	for _, pod := range []*corev1.Pod{elsewhere, o.pods[0]} {
		if _, err := api.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await("the claim is missing", problem(volume.ReasonClaimMissing))
	if _, err := api.CoreV1().PersistentVolumeClaims("default").Create(ctx, o.claim(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the volume is missing", problem(volume.ReasonVolumeMissing))
	if _, err := api.CoreV1().PersistentVolumes().Create(ctx, o.pv(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the volume is wanted", func(now *Snapshot) bool { return now.Volumes[key] != nil && len(now.Pods) == 1 })
	if err := api.CoreV1().Pods("default").Delete(ctx, "web-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("nothing is wanted", func(now *Snapshot) bool { return len(now.Volumes) == 0 && len(now.Pods) == 0 })
}

func TestWatchesEndWithTheirUse(t *testing.T) {
	open := map[string]int{}
	b := newByName(func(k types.NamespacedName) *watching {
		open[k.String()]++
		return &watching{synced: func() bool { return false }, stop: func() { open[k.String()]-- }}
	})
	b.get("default", "a")
	b.get("", "pv")
	b.sweep()
	b.get("default", "a")
	b.sweep()
	if diff := cmp.Diff(map[string]int{"default/a": 1, "/pv": 0}, open); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
