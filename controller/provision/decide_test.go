package provision

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/volume"
)

func TestDecide(t *testing.T) {
	annotated := func(key, value string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			if value == "" {
				delete(c.Annotations, key)
			} else {
				c.Annotations[key] = value
			}
		}
	}
	cases := map[string]struct {
		reason    string
		claim     *corev1.PersistentVolumeClaim
		class     *storagev1.StorageClass
		published bool
		wantDo    Action
		wantWhy   Why
	}{
		"wanted": {reason: "all holds", claim: makeClaim(), class: makeClass(), wantDo: Provision, wantWhy: WhyWanted},
		"gone":   {reason: "no claim", class: makeClass(), wantDo: Ignore, wantWhy: WhyGone},
		"deleting": {
			reason: "a deleted claim wants nothing", class: makeClass(), wantDo: Ignore, wantWhy: WhyGone,
			claim: makeClaim(func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }),
		},
		"no node": {
			reason: "the scheduler has not chosen yet", class: makeClass(), wantDo: Ignore, wantWhy: WhyNotOurs,
			claim: makeClaim(annotated(volume.AnnSelectedNode, "")),
		},
		"other node": {
			reason: "another agent's claim", class: makeClass(), wantDo: Ignore, wantWhy: WhyNotOurs,
			claim: makeClaim(annotated(volume.AnnSelectedNode, "n2")),
		},
		"other driver": {
			reason: "another provisioner's claim", class: makeClass(), wantDo: Ignore, wantWhy: WhyNotOurs,
			claim: makeClaim(annotated(volume.AnnStorageProvisioner, "other")),
		},
		"beta annotation": {
			reason: "the older key counts where the current one is missing", class: makeClass(), wantDo: Provision, wantWhy: WhyWanted,
			claim: makeClaim(annotated(volume.AnnStorageProvisioner, ""), annotated(volume.AnnBetaStorageProvisioner, volume.DriverName)),
		},
		"migrated away": {
			reason: "the driver that took over counts first", class: makeClass(), wantDo: Ignore, wantWhy: WhyNotOurs,
			claim: makeClaim(annotated(volume.AnnMigratedTo, "other")),
		},
		"bound": {
			reason: "the claim names its volume", class: makeClass(), wantDo: Ignore, wantWhy: WhyBound,
			claim: makeClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" }),
		},
		"published": {
			reason: "the PersistentVolume waits to be bound", claim: makeClaim(), class: makeClass(), published: true,
			wantDo: Ignore, wantWhy: WhyProvisioned,
		},
		"no class": {reason: "the class may come", claim: makeClaim(), wantDo: Ignore, wantWhy: WhyNoClass},
		"foreign class": {
			reason: "a class that was made anew for another driver", claim: makeClaim(), wantDo: Ignore, wantWhy: WhyForeignClass,
			class: func() *storagev1.StorageClass { c := makeClass(); c.Provisioner = "other"; return c }(),
		},
		"immediate": {
			reason: "whoever selected the node of an Immediate claim has chosen", claim: makeClaim(), wantDo: Provision, wantWhy: WhyWanted,
			class: func() *storagev1.StorageClass {
				c := makeClass()
				c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
				return c
			}(),
		},
		"selector": {
			reason: "a selector wants an existing volume", class: makeClass(), wantDo: Refuse, wantWhy: WhySelector,
			claim: makeClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }),
		},
		"attributes class": {
			reason: "silently ignoring it would lie", class: makeClass(), wantDo: Refuse, wantWhy: WhyAttributesClass,
			claim: makeClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = new("gold") }),
		},
		"snapshot": {
			reason: "an empty volume instead of the snapshot would lose data", class: makeClass(), wantDo: Refuse, wantWhy: WhyDataSource,
			claim: makeClaim(func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "s"}
			}),
		},
		"clone": {
			reason: "as with a snapshot", class: makeClass(), wantDo: Refuse, wantWhy: WhyDataSource,
			claim: makeClaim(func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "s"}
			}),
		},
		"populator": {
			reason: "a populator brings the volume", class: makeClass(), wantDo: Leave, wantWhy: WhyPopulator,
			claim: makeClaim(func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: new("hello.example.com"), Kind: "Hello", Name: "h"}
			}),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := decide(question{scope: testScope(), claim: tc.claim, class: tc.class, published: tc.published})
			if got.Action != tc.wantDo || got.Why != tc.wantWhy {
				t.Errorf("%s: got %v %s, want %v %s", tc.reason, got.Action, got.Why, tc.wantDo, tc.wantWhy)
			}
			if told := got.Action == Refuse || got.Action == Leave; told != (got.Detail != "") {
				t.Errorf("%s: a sentence for the user exactly where there is one to tell, got %q", tc.reason, got.Detail)
			}
		})
	}
}

func TestSplitParameters(t *testing.T) {
	cases := map[string]struct {
		reason  string
		in      map[string]string
		want    map[string]string
		wantFS  string
		wantErr string
	}{
		"none":        {reason: "a class without parameters", want: map[string]string{}},
		"own":         {reason: "the driver's own pass", in: map[string]string{"a": "b"}, want: map[string]string{"a": "b"}},
		"fstype":      {reason: "reserved ones do not", in: map[string]string{volume.ParameterFSType: "xfs", "a": "b"}, want: map[string]string{"a": "b"}, wantFS: "xfs"},
		"old fstype":  {reason: "the older key is understood", in: map[string]string{"fstype": "ext4"}, want: map[string]string{}, wantFS: "ext4"},
		"both fstype": {reason: "two answers to one question", in: map[string]string{"fstype": "ext4", volume.ParameterFSType: "ext4"}, wantErr: "twice"},
		"misspelled":  {reason: "an unknown reserved key would do nothing", in: map[string]string{volume.ReservedParameterPrefix + "fsType": "ext4"}, wantErr: "reserved and unknown"},
		"secret": {
			reason: "a secret that is not passed is no secret",
			in:     map[string]string{volume.ReservedParameterPrefix + "provisioner-secret-name": "s"}, wantErr: "secrets are not passed",
		},
		"secret namespace": {
			reason: "its other half",
			in:     map[string]string{volume.ReservedParameterPrefix + "node-stage-secret-namespace": "s"}, wantErr: "secrets are not passed",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, fs, err := splitParameters(tc.in)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("%s: error %v, want one with %q", tc.reason, err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || fs != tc.wantFS {
				t.Errorf("%s: filesystem %q, want %q; (-want +got)\n%s", tc.reason, fs, tc.wantFS, diff)
			}
		})
	}
}

func TestSegmentsOf(t *testing.T) {
	got, err := segmentsOf(makeNode(), makeCSINode(), volume.DriverName)
	want := volume.Topology{volume.TopologyNodeKey: testNode, volume.LabelZone: "zone-1"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v; (-want +got)\n%s", err, diff)
	}
	unlabelled := makeNode()
	delete(unlabelled.Labels, volume.LabelZone)
	if _, err := segmentsOf(unlabelled, makeCSINode(), volume.DriverName); err == nil || !strings.Contains(err.Error(), volume.LabelZone) {
		t.Errorf("a missing label must be named: %v", err)
	}
	if _, err := segmentsOf(makeNode(), &storagev1.CSINode{}, volume.DriverName); err == nil || !strings.Contains(err.Error(), "not registered") {
		t.Errorf("an unregistered driver must be said: %v", err)
	}
}
