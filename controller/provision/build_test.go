package provision

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/volume"
)

func mount(fs string, flags ...string) *csi.VolumeCapability_Mount {
	return &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs, MountFlags: flags}}
}

func TestBuildRequest(t *testing.T) {
	here := []*csi.Topology{{Segments: map[string]string{volume.TopologyNodeKey: testNode}}}
	cases := map[string]struct {
		reason string
		change func(*requestInput)
		want   func(*csi.CreateVolumeRequest)
	}{
		"plain": {
			reason: "one capability per access mode; strict topology",
			change: func(*requestInput) {}, want: func(*csi.CreateVolumeRequest) {},
		},
		"multi writer": {
			reason: "with the capability, ReadWriteOnce is many pods of one node",
			change: func(in *requestInput) { in.multiWriter = true },
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
			},
		},
		"one pod": {
			reason: "with the capability, ReadWriteOncePod is one pod",
			change: func(in *requestInput) {
				in.multiWriter = true
				in.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			},
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
			},
		},
		"one pod, old driver": {
			reason: "without the capability there is one mode for a node",
			change: func(in *requestInput) {
				in.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			},
			want: func(*csi.CreateVolumeRequest) {},
		},
		"many": {
			reason: "several modes are several capabilities",
			change: func(in *requestInput) {
				in.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany}
			},
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities = []*csi.VolumeCapability{
					{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY}, AccessType: mount("ext4", "noatime")},
					{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}, AccessType: mount("ext4", "noatime")},
				}
			},
		},
		"block": {
			reason: "a block volume has no filesystem",
			change: func(in *requestInput) { in.claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
			},
		},
		"default filesystem": {
			reason: "for a class that names none",
			change: func(in *requestInput) { in.class.Parameters = nil; in.defaultFSType = "xfs" },
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].AccessType = mount("xfs", "noatime")
				r.Parameters = nil
			},
		},
		"no topology": {
			reason: "a driver without topology keys",
			change: func(in *requestInput) { in.segments = nil },
			want:   func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = nil },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			class := makeClass()
			class.Parameters["media"] = "ssd"
			class.MountOptions = []string{"noatime"}
			in := requestInput{claim: makeClaim(), class: class, segments: volume.Topology{volume.TopologyNodeKey: testNode}}
			tc.change(&in)
			want := &csi.CreateVolumeRequest{
				Name:          "pvc-" + string(testUID),
				CapacityRange: &csi.CapacityRange{RequiredBytes: volume.GiB},
				VolumeCapabilities: []*csi.VolumeCapability{{
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
					AccessType: mount("ext4", "noatime"),
				}},
				Parameters:                map[string]string{"media": "ssd"},
				AccessibilityRequirements: &csi.TopologyRequirement{Requisite: here, Preferred: here},
			}
			tc.want(want)
			got, err := buildRequest(in)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestBuildRequestRefuses(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*corev1.PersistentVolumeClaim)
		want   string
	}{
		"no mode": {"a volume must be usable somehow", func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = nil }, "spec.accessModes is empty"},
		"mode": {"a mode of tomorrow", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"X"}
		}, `"X" is unknown`},
		"no size": {"nothing is no volume", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil }, "at least one byte"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := buildRequest(requestInput{claim: makeClaim(tc.change), class: makeClass()})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: error %v, want one with %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestBuildVolume(t *testing.T) {
	class := makeClass()
	class.MountOptions = []string{"noatime"}
	claim := makeClaim(func(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = "7" })
	request, err := buildRequest(requestInput{claim: claim, class: class})
	if err != nil {
		t.Fatal(err)
	}
	created := &csi.Volume{
		VolumeId: "pool/x", CapacityBytes: 2 * volume.GiB,
		VolumeContext:      map[string]string{volume.ContextPool: "pool", volume.ContextAllocation: "5", "a": "b"},
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"z": "1", "a": "2"}}, {Segments: map[string]string{"z": "3"}}},
	}
	in := func(class *storagev1.StorageClass) volumeInput {
		return volumeInput{scope: testScope(), claim: claim, class: class, request: request, created: created}
	}
	want := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "pvc-" + string(testUID),
			Labels: map[string]string{"berth.dev/node": testNode},
			Annotations: map[string]string{
				"pv.kubernetes.io/provisioned-by": volume.DriverName,
				"berth.dev/pool":                  "pool", "berth.dev/allocation": "5",
				"volume.kubernetes.io/provisioner-deletion-secret-name":      "",
				"volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
			},
			Finalizers: []string{"external-provisioner.volume.kubernetes.io/finalizer"},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data", UID: testUID, ResourceVersion: "7",
			},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              "fast",
			MountOptions:                  []string{"noatime"},
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "a", Operator: corev1.NodeSelectorOpIn, Values: []string{"2"}},
					{Key: "z", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}},
				}},
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "z", Operator: corev1.NodeSelectorOpIn, Values: []string{"3"}}}},
			}}},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: volume.DriverName, VolumeHandle: "pool/x", FSType: "ext4",
				VolumeAttributes: map[string]string{
					"berth.dev/pool": "pool", "berth.dev/allocation": "5", "a": "b",
					"storage.kubernetes.io/csiProvisionerIdentity": volume.DriverName + "-" + testNode,
				},
			}},
		},
	}
	got, err := buildVolume(in(class))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	retain := makeClass()
	retain.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
	kept, err := buildVolume(in(retain))
	if err != nil {
		t.Fatal(err)
	}
	if len(kept.Finalizers) != 0 || kept.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("a volume that is kept is not held by the finalizer: %v", kept.Finalizers)
	}

	created.CapacityBytes = 0
	silent, err := buildVolume(in(class))
	if size := silent.Spec.Capacity.Storage().Value(); err != nil || size != volume.GiB {
		t.Errorf("a driver that says no size made what was asked: %d, %v", size, err)
	}
	created.CapacityBytes = 5
	if _, err := buildVolume(in(class)); err == nil {
		t.Error("a volume smaller than asked must be an error")
	}
}
