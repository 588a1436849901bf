package cluster

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/berth-storage/berth/volume"
)

// TestClaimMatters: what a round reads brings one, the rest of a large cluster
// does not.
func TestClaimMatters(t *testing.T) {
	foreign := func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnStorageProvisioner] = "other" }
	labelled := func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"x": "y"} }
	bound := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" }
	type changes = []func(*corev1.PersistentVolumeClaim)
	cases := map[string]struct {
		reason        string
		before, after changes
		want          bool
	}{
		"selected":    {"a selection holds space", nil, changes{selectedFor("a")}, true},
		"deselected":  {"a claim that came back waits again", changes{selectedFor("a")}, nil, true},
		"bound":       {"a bound claim holds nothing", changes{selectedFor("a")}, changes{selectedFor("a"), bound}, true},
		"becomes own": {"the provisioner is written after the claim", changes{foreign}, nil, true},
		"waiting":     {"a write may have met the older version", nil, changes{labelled}, true},
		"released":    {"the write that takes a selection back may have met the older version", changes{selectedFor("a")}, changes{selectedFor("a"), labelled}, true},
		"steady":      {"labels of a bound claim are nothing to a round", changes{selectedFor("a"), bound}, changes{selectedFor("a"), bound, labelled}, false},
		"foreign":     {"claims of others are theirs", changes{foreign}, changes{foreign, labelled}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := event.UpdateEvent{ObjectOld: makeClaim("data", gi, tc.before...), ObjectNew: makeClaim("data", gi, tc.after...)}
			if got := claimMatters(volume.DriverName).Update(e); got != tc.want {
				t.Errorf("%s: passes %t", tc.reason, got)
			}
		})
	}
}

// TestNodeChanged: heartbeats bring no round.
func TestNodeChanged(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*corev1.Node, *storagev1.CSINode)
		want   bool
	}{
		"heartbeat": {"conditions are written every few minutes", func(n *corev1.Node, _ *storagev1.CSINode) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse})
		}, false},
		"down":     {"a node that is down takes no claim", func(n *corev1.Node, _ *storagev1.CSINode) { n.Status.Conditions = nil }, true},
		"cordoned": {"nor does one that is cordoned", func(n *corev1.Node, _ *storagev1.CSINode) { n.Spec.Unschedulable = true }, true},
		"relabelled": {"allowed topologies are labels", func(n *corev1.Node, _ *storagev1.CSINode) {
			n.Labels[volume.LabelZone] = "z"
		}, true},
		"driver gone": {"a node without the driver serves nothing", func(_ *corev1.Node, c *storagev1.CSINode) { c.Spec.Drivers = nil }, true},
		"driver swapped": {"another driver is another driver", func(_ *corev1.Node, c *storagev1.CSINode) {
			c.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other"}}
		}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			nodeBefore, csiBefore := makeNode("a")
			nodeAfter, csiAfter := makeNode("a")
			tc.change(nodeAfter, csiAfter)
			got := nodeChanged(nodeBefore, nodeAfter) || driversChanged(csiBefore, csiAfter)
			if got != tc.want {
				t.Errorf("%s: changed %t", tc.reason, got)
			}
		})
	}
}

// TestConfigThatCannotRun: what leader election would refuse again and again is
// said at once.
func TestConfigThatCannotRun(t *testing.T) {
	cases := map[string]struct {
		reason string
		config Config
		want   string
	}{
		"defaults":     {reason: "they fit each other"},
		"lease short":  {"another would take the Lease while it is renewed", Config{LeaseDuration: 5 * time.Second, RenewDeadline: 10 * time.Second}, "lease duration 5s must be above the renew deadline 10s"},
		"lease equal":  {"as short", Config{LeaseDuration: 10 * time.Second}, "lease duration 10s"},
		"renew short":  {"there is no time for a second try", Config{RetryPeriod: 9 * time.Second}, "retry period 9s"},
		"renew enough": {reason: "a fifth more is enough", config: Config{RetryPeriod: 8 * time.Second}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.config.Driver = volume.DriverName
			_, err := tc.config.withDefaults()
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}
