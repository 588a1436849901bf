package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/test/seeds"
	"github.com/berth-storage/berth/volume"
)

func csiVolume(name, handle, claim string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "3"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: handle}
	if claim != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: claim, UID: types.UID("uid-" + claim)}
	}
	return pv
}

func ebsVolume(name string) *corev1.PersistentVolume {
	pv := csiVolume(name, "", "")
	pv.Spec.CSI = nil
	pv.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-" + name}
	return pv
}

func boundClaim(name, pv string) *corev1.PersistentVolumeClaim {
	c := localClaim(name, "A")
	c.Spec.VolumeName = pv
	return c
}

func attachmentTo(name, node, driver, pv string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(pv)},
	}}
}

func podOf(name string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return pod
}

func tenants(generation int64, pods ...*corev1.Pod) Tenants {
	return Tenants{Node: "n1", Generation: generation, Pods: slices.Values(pods)}
}

// volumesOf lists what the occupancy has, those attached for no pod marked.
func volumesOf(o *Occupancy) []string {
	out := []string{}
	for k := range o.pods {
		out = append(out, k.String())
	}
	for k := range o.left {
		out = append(out, k.String()+" left")
	}
	slices.Sort(out)
	return out
}

// TestOccupancyAgainstNew: whatever happened before, a node has what a cache that
// has just started says.
func TestOccupancyAgainstNew(t *testing.T) {
	counted := 0
	rounds := seeds.Rounds(t, 60, func(_ uint64, r *rand.Rand) {
		c := newStores(t)
		name := func(kind string, n int) string { return fmt.Sprint(kind, r.IntN(n)) }
		var pods []*corev1.Pod
		// As a scheduler's: another one only when the pods are others.
		generation := int64(1)
		for i := range 60 {
			switch r.IntN(8) {
			case 7:
				if va := attachmentTo(name("a", 3), "n1", "d", ""); c.attachments.where[va.Name] != "" {
					c.remove(va)
				}
			case 0:
				c.set(boundClaim(name("c", 4), name("v", 4)))
			case 1:
				c.set(localClaim(name("c", 4), "A"))
			case 2:
				if pvc := localClaim(name("c", 4), "A"); c.ClaimByKey("default/"+pvc.Name) != nil {
					c.remove(pvc)
				}
			case 3:
				c.set(csiVolume(name("v", 4), name("h", 6), []string{"", "c0", "c1"}[r.IntN(3)]))
			case 4:
				if pv := csiVolume(name("v", 4), "", ""); c.Volume(pv.Name) != nil {
					c.remove(pv)
				}
			case 5:
				c.set(attachmentTo(name("a", 3), "n1", "d", name("v", 4)))
			case 6:
				class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "A"}, Provisioner: "d"}
				if c.Class("A") == nil {
					c.set(class)
				} else if r.IntN(4) == 0 {
					c.remove(class)
				}
			}
			if r.IntN(3) == 0 {
				pods = append(slices.Clone(pods), podOf(fmt.Sprint("p", i), name("c", 4), name("c", 4)))
				generation++
			}
			if len(pods) > 3 {
				pods = slices.Delete(slices.Clone(pods), 0, 1)
			}
			if r.IntN(2) == 0 {
				continue
			}
			got := c.Occupancy(tenants(generation, pods...))
			fresh, err := New(c.factory, Options{Clock: c.clock})
			if err != nil {
				t.Fatal(err)
			}
			fresh.Snapshot()
			want := fresh.Occupancy(tenants(1, pods...))
			if diff := cmp.Diff(volumesOf(want), volumesOf(got)); diff != "" {
				t.Fatalf("step %d (-started now +got)\n%s", i, diff)
			}
			counted += len(want.pods)
		}
		c.set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		c.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		if a := c.attachments; len(a.tenants)+len(a.claimOn) != 0 {
			t.Fatalf("kept of a node that is gone: %v, %v", a.tenants, a.claimOn)
		}
	})
	if rounds >= 60 && counted < 1000 {
		t.Errorf("poor cases: %d volumes counted", counted)
	}
}

func TestOccupancy(t *testing.T) {
	ephemeralPod := func(owner string) (*corev1.Pod, *corev1.PersistentVolumeClaim) {
		pod := podOf("e")
		pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		c := boundClaim("e-scratch", "v1")
		c.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner), Controller: new(true)}}
		return pod, c
	}
	owned, ownedClaim := ephemeralPod("uid-e")
	foreign, foreignClaim := ephemeralPod("somebody")
	inline := podOf("i")
	inline.Spec.Volumes = []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-x"}}},
		{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}},
		{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	inlineVA := attachmentTo("va", "n1", "d", "")
	inlineVA.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h9"}}}}
	cases := map[string]struct {
		reason  string
		objects []any
		pods    []*corev1.Pod
		want    []string
		used    int64
	}{
		"nothing":               {"no pods, no attachments", nil, nil, []string{}, 0},
		"bound":                 {"by the handle", []any{csiVolume("v1", "h1", "a"), boundClaim("a", "v1")}, []*corev1.Pod{podOf("p", "a")}, []string{"d^h1"}, 1},
		"shared by two pods":    {"a volume counts once", []any{csiVolume("v1", "h1", "a"), boundClaim("a", "v1")}, []*corev1.Pod{podOf("p", "a"), podOf("q", "a")}, []string{"d^h1"}, 1},
		"two names, one disk":   {"two PersistentVolumes of one handle are one volume", []any{csiVolume("v1", "h1", "a"), csiVolume("v2", "h1", "b"), boundClaim("a", "v1"), boundClaim("b", "v2")}, []*corev1.Pod{podOf("p", "a", "b")}, []string{"d^h1"}, 1},
		"unbound":               {"a stand-in of its class's driver", []any{localClaim("a", "A")}, []*corev1.Pod{podOf("p", "a")}, []string{"d^claim uid-a"}, 1},
		"volume missing":        {"a stand-in too", []any{boundClaim("a", "gone")}, []*corev1.Pod{podOf("p", "a")}, []string{"d^claim uid-a"}, 1},
		"claim missing":         {"what it was is not known", nil, []*corev1.Pod{podOf("p", "a")}, []string{}, 0},
		"no class":              {"nobody attaches it", []any{localClaim("a", "")}, []*corev1.Pod{podOf("p", "a")}, []string{}, 0},
		"no provisioner":        {"nobody attaches it", []any{localClaim("a", "local")}, []*corev1.Pod{podOf("p", "a")}, []string{}, 0},
		"ephemeral":             {"the pod's own claim", []any{csiVolume("v1", "h1", "e-scratch"), ownedClaim}, []*corev1.Pod{owned}, []string{"d^h1"}, 1},
		"ephemeral, foreign":    {"a claim of another object is not the pod's (upstream: error)", []any{csiVolume("v1", "h1", "e-scratch"), foreignClaim}, []*corev1.Pod{foreign}, []string{}, 0},
		"migrated":              {"as its driver knows it", []any{ebsVolume("v1"), boundClaim("a", "v1")}, []*corev1.Pod{podOf("p", "a")}, []string{"ebs.csi.aws.com^vol-v1"}, 0},
		"inline":                {"a migrated inline volume; CSI's own are not attached", nil, []*corev1.Pod{inline}, []string{"ebs.csi.aws.com^vol-x"}, 0},
		"attached, used":        {"the attachment of a pod's volume adds nothing", []any{csiVolume("v1", "h1", "a"), boundClaim("a", "v1"), attachmentTo("va", "n1", "d", "v1")}, []*corev1.Pod{podOf("p", "a")}, []string{"d^h1"}, 1},
		"attached, left":        {"the volume of a pod that is gone is still there", []any{csiVolume("v1", "h1", "a"), boundClaim("a", "v1"), attachmentTo("va", "n1", "d", "v1")}, nil, []string{"d^h1 left"}, 1},
		"attached elsewhere":    {"another node's", []any{csiVolume("v1", "h1", ""), attachmentTo("va", "n2", "d", "v1")}, nil, []string{}, 0},
		"attached, volume gone": {"it takes its place all the same (upstream forgets it)", []any{attachmentTo("va", "n1", "d", "v1")}, nil, []string{"d^volume v1 left"}, 1},
		"attached, migrated":    {"by its translated handle (upstream forgets it)", []any{ebsVolume("v1"), attachmentTo("va", "n1", "ebs.csi.aws.com", "v1")}, nil, []string{"ebs.csi.aws.com^vol-v1 left"}, 0},
		"attached inline":       {"an inline volume has its handle in the attachment (upstream forgets it)", []any{inlineVA}, nil, []string{"d^h9 left"}, 1},
		"no attacher":           {"nobody knows whose", []any{attachmentTo("va", "n1", "", "v1")}, nil, []string{}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: volume.NoProvisioner})
			for _, o := range tc.objects {
				s.set(o)
			}
			o := s.Occupancy(tenants(1, tc.pods...))
			if diff := cmp.Diff(tc.want, volumesOf(o)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			if got := o.Used("d"); got != tc.used {
				t.Errorf("%s: %d volumes of the driver, want %d", tc.reason, got, tc.used)
			}
		})
	}
}

// TestOccupancyIsRemembered: the same pods are not counted again until something
// of them changes, whichever it is.
func TestOccupancyIsRemembered(t *testing.T) {
	moved := boundClaim("a", "v2")
	cases := map[string]struct {
		reason string
		change func(s *stores)
		again  bool
		want   []string
	}{
		"nothing":           {"remembered", func(*stores) {}, true, []string{"d^claim uid-a"}},
		"claim touched":     {"a label changes nothing", func(s *stores) { c := localClaim("a", "A"); c.Labels = map[string]string{"x": "y"}; s.set(c) }, true, []string{"d^claim uid-a"}},
		"claim bound":       {"it is another volume now", func(s *stores) { s.set(boundClaim("a", "v2")) }, false, []string{"d^h2"}},
		"claim replaced":    {"a namesake", func(s *stores) { c := localClaim("a", "A"); c.UID = "new"; s.set(c) }, false, []string{"d^claim new"}},
		"claim deleted":     {"it is not known any more", func(s *stores) { s.remove(localClaim("a", "A")) }, false, []string{}},
		"volume appears":    {"the claim named it before", func(s *stores) { s.remove(csiVolume("v2", "h2", "a")); s.set(moved); s.set(csiVolume("v2", "h2", "a")) }, false, []string{"d^h2"}},
		"attached":          {"one more", func(s *stores) { s.set(attachmentTo("va", "n1", "d", "v2")) }, false, []string{"d^claim uid-a", "d^h2 left"}},
		"attached, gone":    {"and away", func(s *stores) { va := attachmentTo("va", "n1", "d", "v2"); s.set(va); s.remove(va) }, false, []string{"d^claim uid-a"}},
		"other attachments": {"another node's", func(s *stores) { s.set(attachmentTo("va", "n2", "d", "v2")) }, true, []string{"d^claim uid-a"}},
		"other claims":      {"not of these pods", func(s *stores) { s.set(localClaim("b", "A")) }, true, []string{"d^claim uid-a"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.set(csiVolume("v2", "h2", "a"))
			s.set(localClaim("a", "A"))
			pods := tenants(1, podOf("p", "a"))
			s.Occupancy(pods)
			tc.change(s)
			if got := s.Remembers(pods); got != tc.again {
				t.Errorf("%s: remembered %t, want %t", tc.reason, got, tc.again)
			}
			if diff := cmp.Diff(tc.want, volumesOf(s.Occupancy(pods))); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			if s.Remembers(tenants(2, podOf("p", "a"))) {
				t.Error("other pods are taken for these")
			}
			s.Occupancy(tenants(2))
			if len(s.attachments.claimOn) > 0 {
				t.Errorf("claims of pods that left are kept: %v", s.attachments.claimOn)
			}
		})
	}
}

// TestWhatIf: in a dry run the attachment of an evicted pod goes with it, and
// what is attached for nobody stays.
func TestWhatIf(t *testing.T) {
	s := newStores(t)
	for i, claim := range []string{"a", "b", "c"} {
		pv := fmt.Sprint("v", i)
		s.set(csiVolume(pv, fmt.Sprint("h", i), claim))
		s.set(boundClaim(claim, pv))
		s.set(attachmentTo("va-"+pv, "n1", "d", pv))
	}
	base := s.Occupancy(tenants(1, podOf("p", "a"), podOf("q", "b")))
	if diff := cmp.Diff([]string{"d^h0", "d^h1", "d^h2 left"}, volumesOf(base)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	got := s.WhatIf(base, tenants(2, podOf("q", "b")))
	if diff := cmp.Diff([]string{"d^h1", "d^h2 left"}, volumesOf(got)); diff != "" || got.Used("d") != 2 {
		t.Errorf("p evicted: %d volumes (-want +got)\n%s", got.Used("d"), diff)
	}
	got = s.WhatIf(base, tenants(3, podOf("p", "a"), podOf("q", "b"), podOf("r", "c")))
	if diff := cmp.Diff([]string{"d^h0", "d^h1", "d^h2"}, volumesOf(got)); diff != "" || got.Used("d") != 3 {
		t.Errorf("r nominated, whose volume is attached: %d volumes (-want +got)\n%s", got.Used("d"), diff)
	}
	if !s.Remembers(tenants(1)) {
		t.Error("a dry run made the cache forget what is")
	}
}

func TestWanted(t *testing.T) {
	s := newStores(t)
	s.set(csiVolume("v1", "h1", "a"))
	s.set(ebsVolume("v2"))
	s.set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "ebs"}, Provisioner: "kubernetes.io/aws-ebs"})
	claims := []*corev1.PersistentVolumeClaim{boundClaim("a", "v1"), boundClaim("b", "v2"), localClaim("c", "ebs"), localClaim("d", "A"), boundClaim("e", "v1")}
	pod := podOf("p")
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-v2"}}}}
	everywhere, all := s.Wanted(pod, claims)
	if diff := cmp.Diff([]volume.Key{{Driver: "d", Handle: "h1"}, {Driver: "d", Handle: "claim uid-d"}}, everywhere); diff != "" {
		t.Errorf("on a node without CSINode: (-want +got)\n%s", diff)
	}
	want := []volume.Key{{Driver: "d", Handle: "h1"}, {Driver: "d", Handle: "claim uid-d"}, {Driver: "ebs.csi.aws.com", Handle: "vol-v2"}, {Driver: "ebs.csi.aws.com", Handle: "claim uid-c"}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("with a CSINode: (-want +got)\n%s", diff)
	}
	if !HasInline(pod) || HasInline(podOf("q", "a")) {
		t.Error("HasInline is not about inline volumes")
	}
}

func nodeWith(counts map[string]*int32) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for driver, count := range counts {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, Allocatable: &storagev1.VolumeNodeResources{Count: count}})
	}
	return n
}

// TestLimitGrace: a limit that vanishes is remembered, for a while.
func TestLimitGrace(t *testing.T) {
	five := map[string]*int32{"d": ptr.To[int32](5)}
	cases := map[string]struct {
		reason string
		steps  func(s *stores)
		want   int64
	}{
		"there":        {"nothing vanished", func(*stores) {}, 0},
		"driver gone":  {"its pod restarts", func(s *stores) { s.set(nodeWith(nil)) }, 5},
		"reports zero": {"it counts too early", func(s *stores) { s.set(nodeWith(map[string]*int32{"d": ptr.To[int32](0)})) }, 5},
		"reports none": {"as a kubelet writes a zero", func(s *stores) { s.set(nodeWith(map[string]*int32{"d": nil})) }, 5},
		"CSINode gone": {"the node's agent restarts", func(s *stores) { s.remove(nodeWith(nil)) }, 5},
		"back":         {"the driver speaks for itself", func(s *stores) { s.set(nodeWith(nil)); s.set(nodeWith(map[string]*int32{"d": ptr.To[int32](7)})) }, 0},
		"flaps": {"the grace runs from the first time", func(s *stores) {
			s.set(nodeWith(nil))
			s.clock.Step(40 * time.Second)
			s.set(nodeWith(map[string]*int32{"d": nil}))
			s.clock.Step(40 * time.Second)
			s.expire()
		}, 0},
		"after a while":  {"then it has no limit, as upstream", func(s *stores) { s.set(nodeWith(nil)); s.clock.Step(time.Minute); s.expire() }, 0},
		"before a while": {"not yet", func(s *stores) { s.set(nodeWith(nil)); s.clock.Step(59 * time.Second); s.expire() }, 5},
		"node gone": {"nothing is remembered of a node that does not exist", func(s *stores) {
			s.set(nodeWith(nil))
			s.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.set(nodeWith(five))
			tc.steps(s)
			got, known := s.Remembered("n1", "d")
			if got != tc.want || known != (tc.want > 0) {
				t.Errorf("%s: remembered %d (%t), want %d", tc.reason, got, known, tc.want)
			}
			if _, known := s.Remembered("n1", "e"); known {
				t.Error("a driver that was never there is remembered")
			}
		})
	}
	// Run ends it, and tells.
	s := newStores(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	s.set(nodeWith(five))
	s.set(nodeWith(nil))
	waitForTimer(t, s.clock)
	s.clock.Step(time.Minute)
	<-s.ended
	cancel()
	<-done
}
