package plugin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// TestHintsByPod: what an event is to pods of different kinds; TestHints is what
// different events are to one (upstream: TestIsSchedulableAfter…, TestCSILimits…QHint).
func TestHintsByPod(t *testing.T) {
	const queued, skipped = fwk.Queue, fwk.QueueSkip
	claim := func(namespace, name string) *corev1.PersistentVolumeClaim {
		pvc := fakeapi.PVC(name, "ebs", "1Gi")
		pvc.Namespace = namespace
		return pvc
	}
	inline := func(driver string) corev1.VolumeSource {
		return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}
	}
	disk := corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "disk"}}
	otherDisk := corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
		Spec: fakeapi.PVC("", "ebs", "1Gi").Spec,
	}}}
	// None has been judged, so that what it needs is read from the pod.
	none, own, scratch := fakeapi.Pod("none"), fakeapi.Pod("own", "ebs0"), with(fakeapi.Pod("scratch"), ephemeral)
	ofDisk, ofOtherDisk, ofBoth := with(fakeapi.Pod("disk"), disk), with(fakeapi.Pod("pd"), otherDisk), with(fakeapi.Pod("both", "ebs0"), disk)
	detached := func(driver string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}},
		}}
	}
	placed := func(pod *corev1.Pod) *corev1.Pod {
		pod = pod.DeepCopy()
		pod.Name, pod.UID, pod.Spec.NodeName = pod.Name+"-gone", pod.UID+"-gone", "n1"
		return pod
	}
	tracking := func(driver string, tracks *bool) *storagev1.CSIDriver {
		d := fakeapi.Driver(driver)
		d.Spec.StorageCapacity = tracks
		return d
	}
	migrating := func(plugins string) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{volume.AnnMigratedPlugins: plugins}}}
	}
	limited := func(n int32) *storagev1.CSINode { return makeCSINode(map[string]int32{ebsDriver: n}) }
	cases := map[string]struct {
		reason   string
		pod      *corev1.Pod
		resource fwk.EventResource
		old, new any
		want     fwk.QueueingHint
	}{
		"claim added, pod of none":            {"the pod waits for no claim", none, fwk.PersistentVolumeClaim, nil, claim("default", "ebs0"), skipped},
		"claim changed, pod of none":          {"the pod waits for no claim", none, fwk.PersistentVolumeClaim, claim("default", "ebs0"), claim("default", "ebs0"), skipped},
		"claim added elsewhere":               {"a namesake of another namespace", own, fwk.PersistentVolumeClaim, nil, claim("other", "ebs0"), skipped},
		"claim changed elsewhere":             {"a namesake of another namespace", own, fwk.PersistentVolumeClaim, claim("other", "ebs0"), claim("other", "ebs0"), skipped},
		"another claim changed":               {"it is not the pod's", own, fwk.PersistentVolumeClaim, claim("default", "x"), claim("default", "x"), skipped},
		"another claim, pod with ephemeral":   {"it is not the pod's", scratch, fwk.PersistentVolumeClaim, claim("default", "x"), claim("default", "x"), skipped},
		"own claim added":                     {"the pod waits for it", own, fwk.PersistentVolumeClaim, nil, claim("default", "ebs0"), queued},
		"own claim changed":                   {"the pod waits for it", own, fwk.PersistentVolumeClaim, claim("default", "ebs0"), claim("default", "ebs0"), queued},
		"claim of an ephemeral volume added":  {"its name is the pod's and the volume's", scratch, fwk.PersistentVolumeClaim, nil, claim("default", "scratch-v0"), queued},
		"claim of an ephemeral volume change": {"its name is the pod's and the volume's", scratch, fwk.PersistentVolumeClaim, claim("default", "scratch-v0"), claim("default", "scratch-v0"), queued},

		"detached, pod of none":           {"the pod attaches nothing", none, fwk.VolumeAttachment, detached(ebsDriver), nil, skipped},
		"detached, claim of the driver":   {"a place is free", own, fwk.VolumeAttachment, detached(ebsDriver), nil, queued},
		"detached, claim of another":      {"the place is another driver's (upstream queues)", own, fwk.VolumeAttachment, detached(pdDriver), nil, skipped},
		"detached, disk of the driver":    {"the driver took the plugin over", ofDisk, fwk.VolumeAttachment, detached(ebsDriver), nil, queued},
		"detached, disk of another":       {"the place is another driver's", ofOtherDisk, fwk.VolumeAttachment, detached(ebsDriver), nil, skipped},
		"detached, disk and claim":        {"both are the driver's", ofBoth, fwk.VolumeAttachment, detached(ebsDriver), nil, queued},
		"detached, disk and claim, other": {"the place is another driver's (upstream queues)", ofBoth, fwk.VolumeAttachment, detached(pdDriver), nil, skipped},

		"pod with a claim left":   {"a place is free", own, fwk.AssignedPod, placed(fakeapi.Pod("x", "ebs1")), nil, queued},
		"pod with a disk left":    {"the driver took the plugin over", own, fwk.AssignedPod, placed(ofDisk), nil, queued},
		"pod without any left":    {"no place is free", own, fwk.AssignedPod, placed(none), nil, skipped},
		"pod with an inline left": {"such a volume is never attached", own, fwk.AssignedPod, placed(with(fakeapi.Pod("x"), inline(ebsDriver))), nil, skipped},
		"pod left, pod of none":   {"the pod needs no place", none, fwk.AssignedPod, placed(fakeapi.Pod("x", "ebs1")), nil, skipped},

		"capacity not tracked, inline only": {"an inline volume asks for no capacity (upstream queues)", with(fakeapi.Pod("in"), inline(ebsDriver)), fwk.CSIDriver, tracking(ebsDriver, new(true)), tracking(ebsDriver, nil), skipped},
		"capacity not tracked, claim":       {"nothing is checked any more", own, fwk.CSIDriver, tracking(ebsDriver, new(true)), tracking(ebsDriver, nil), queued},
		"capacity no longer tracked":        {"nothing is checked any more", own, fwk.CSIDriver, tracking(ebsDriver, new(true)), tracking(ebsDriver, new(false)), queued},
		"capacity still tracked":            {"nothing changes", own, fwk.CSIDriver, tracking(ebsDriver, new(true)), tracking(ebsDriver, new(true)), skipped},
		"capacity was never tracked":        {"nothing changes", own, fwk.CSIDriver, tracking(ebsDriver, nil), tracking(ebsDriver, new(false)), skipped},
		"capacity was not tracked":          {"more is checked, not less", own, fwk.CSIDriver, tracking(ebsDriver, new(false)), tracking(ebsDriver, new(true)), skipped},
		"of another driver":                 {"it serves no volume of the pod", own, fwk.CSIDriver, tracking(pdDriver, new(true)), tracking(pdDriver, nil), skipped},
		"driver changed, pod of none":       {"the pod has no driver", none, fwk.CSIDriver, tracking(ebsDriver, new(true)), tracking(ebsDriver, nil), skipped},

		"CSINode added":               {"drivers appear", own, fwk.CSINode, nil, migrating(""), queued},
		"plugins migrated, first":     {"volumes of plugins are elsewhere then", own, fwk.CSINode, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, migrating("a"), queued},
		"plugins migrated, others":    {"volumes of plugins are elsewhere then", own, fwk.CSINode, migrating("a"), migrating("a,b"), queued},
		"plugins migrated, unchanged": {"nothing changes", own, fwk.CSINode, migrating("a"), migrating("a"), skipped},
		"limit raised":                {"more volumes fit", own, fwk.CSINode, limited(1), limited(2), queued},
		"limit raised, disk":          {"the driver took the plugin over", ofDisk, fwk.CSINode, limited(1), limited(2), queued},
		"limit lowered":               {"fewer fit", own, fwk.CSINode, limited(2), limited(1), skipped},
		"limit unchanged":             {"nothing changes", own, fwk.CSINode, limited(2), limited(2), skipped},
		"limit raised, pod of none":   {"the pod attaches nothing (upstream queues)", none, fwk.CSINode, limited(1), limited(2), skipped},
	}
	r := newCluster(t, append(countedClaims(), fakeapi.Node("n1"))...).start(t.Context())
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			if got := r.hint(tc.resource, tc.pod, tc.old, tc.new); got != tc.want {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

// TestHintsOfNonsense: an object of another kind is an error, and the pod is
// tried: nothing says that it would be in vain.
func TestHintsOfNonsense(t *testing.T) {
	r := newCluster(t, append(countedClaims(), fakeapi.Node("n1"))...).start(t.Context())
	events, err := r.plugin.EventsToRegister(t.Context())
	if err != nil || len(events) == 0 {
		t.Fatalf("%v, %v", events, err)
	}
	for _, e := range events {
		t.Run(string(e.Event.Resource), func(t *testing.T) {
			got, err := e.QueueingHintFn(klog.FromContext(t.Context()), fakeapi.Pod("p", "ebs0"), "not an object", "nor this")
			if err == nil || got != fwk.Queue {
				t.Errorf("got %v and error %v", got, err)
			}
		})
	}
}
