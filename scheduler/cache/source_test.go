package cache

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// kept is a Snapshots of what is in a map.
type kept map[string]string

func (k kept) NodeOf(namespace, name string) (string, bool) {
	node, ok := k[namespace+"/"+name]
	return node, ok
}

func TestSource(t *testing.T) {
	from := func(group, kind, name string) *corev1.PersistentVolumeClaim {
		c := localClaim("c", "A")
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: kind, Name: name}
		if group != "" {
			c.Spec.DataSource.APIGroup = &group
		}
		return c
	}
	across := from("snapshot.storage.k8s.io", "VolumeSnapshot", "ignored")
	across.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "s", Namespace: new("other")}
	local := csiVolume("v", "h", "origin")
	local.Spec.NodeAffinity = localVolume("", "n1", 1).Spec.NodeAffinity
	foreign := local.DeepCopy()
	foreign.Spec.CSI.Driver = "another"
	selected := localClaim("origin", "A")
	selected.Annotations = map[string]string{volume.AnnSelectedNode: "n1"}
	n1, n2 := &binding.Node{Name: "n1", Labels: hostLabels("n1")}, &binding.Node{Name: "n2", Labels: hostLabels("n2")}
	cases := map[string]struct {
		reason  string
		claim   *corev1.PersistentVolumeClaim
		objects []any
		want    string
	}{
		"none":                 {"a new volume", localClaim("c", "A"), nil, ""},
		"snapshot":             {"its content's node", from("snapshot.storage.k8s.io", "VolumeSnapshot", "s"), nil, "snapshot default/s"},
		"snapshot of another":  {"dataSourceRef with a namespace", across, nil, "snapshot other/s"},
		"snapshot not known":   {"the driver will tell", from("snapshot.storage.k8s.io", "VolumeSnapshot", "new"), nil, ""},
		"other kind":           {"a populator's business", from("example.com", "VolumeSnapshot", "s"), nil, ""},
		"clone":                {"where the origin can be reached", from("", "PersistentVolumeClaim", "origin"), []any{local, boundClaim("origin", "v")}, "claim default/origin"},
		"clone from anywhere":  {"a volume without affinity ties to no place", from("", "PersistentVolumeClaim", "origin"), []any{csiVolume("v", "h", "origin"), boundClaim("origin", "v")}, ""},
		"clone across drivers": {"the provisioner will refuse it with a better reason", from("", "PersistentVolumeClaim", "origin"), []any{foreign, boundClaim("origin", "v")}, ""},
		"clone of one in work": {"it will be where it is being made", from("", "PersistentVolumeClaim", "origin"), []any{selected}, "claim default/origin"},
		"clone of one to come": {"nobody knows yet where", from("", "PersistentVolumeClaim", "origin"), []any{localClaim("origin", "A")}, ""},
		"clone of nothing":     {"the origin may yet appear", from("", "PersistentVolumeClaim", "origin"), nil, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.snapshots = kept{"default/s": "n1", "other/s": "n1"}
			for _, o := range tc.objects {
				s.set(o)
			}
			s.set(tc.claim)
			q, err := s.Ask([]*corev1.PersistentVolumeClaim{tc.claim})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if source := q.Pod.Delayed[0].Source; source != nil {
				got = source.Name
				if !source.Place.Matches(n1) || source.Place.Matches(n2) {
					t.Errorf("%s: the source is at %s, want n1 alone", tc.reason, source.Place)
				}
			}
			if got != tc.want {
				t.Errorf("%s: source %q, want %q", tc.reason, got, tc.want)
			}
			origin, clone := ClaimSource(tc.claim)
			if clone != (tc.claim.Spec.DataSource != nil && tc.claim.Spec.DataSource.Kind == "PersistentVolumeClaim") || clone && origin != "default/origin" {
				t.Errorf("ClaimSource: %q, %t", origin, clone)
			}
		})
	}
}

// TestRefusals: a node that gave a claim back is remembered until its capacity
// changes.
func TestRefusals(t *testing.T) {
	sized := func(bytes string) *corev1.PersistentVolumeClaim {
		c := pvc("u9", "9", "")
		c.Name = "other"
		c.Spec.Resources.Requests[corev1.ResourceStorage] = capacityQuantity(bytes)
		return c
	}
	elsewhere := capacityObject("7", numbers("Q", "1"))
	elsewhere.Name, elsewhere.NodeTopology = "A-n2", &metav1.LabelSelector{MatchLabels: nodeLabels("n2")}
	second := capacityObject("7", numbers("R", "1"))
	second.Name = "A-n1-second"
	cases := map[string]struct {
		reason string
		ask    string
		steps  func(s *stores)
		want   []string
	}{
		"given back": {"for a claim of that size", "30", func(*stores) {}, []string{"n1"}},
		"larger":     {"and any larger", "31", func(*stores) {}, []string{"n1"}},
		"smaller":    {"a smaller one may fit", "29", func(*stores) {}, nil},
		"smaller refused": {"until it is refused too", "20", func(s *stores) {
			c := pvc("u2", "3", "n1")
			c.Name = "small"
			c.Spec.Resources.Requests[corev1.ResourceStorage] = capacityQuantity("10")
			s.set(c)
			c = c.DeepCopy()
			c.Annotations = nil
			s.set(c)
		}, []string{"n1"}},
		"capacity changed": {"the driver has counted again", "30", func(s *stores) { s.set(capacityObject("8", numbers("P", "6"))) }, nil},
		"capacity resent":  {"the same version is no news", "30", func(s *stores) { s.set(capacityObject("1", numbers("P", "5"))) }, []string{"n1"}},
		"object gone":      {"the driver has counted again", "30", func(s *stores) { s.remove(capacityObject("1", numbers("P", "5"))) }, nil},
		"another pool":     {"a new object here may have room", "30", func(s *stores) { s.set(second) }, nil},
		"other node":       {"another node's capacity tells nothing", "30", func(s *stores) { s.set(elsewhere) }, []string{"n1"}},
		"after a while":    {"not for ever", "30", func(s *stores) { s.clock.Step(UnnumberedGrace); s.expire() }, nil},
		"claim deleted":    {"the node has no room for others either", "30", func(s *stores) { s.remove(pvc("u1", "3", "")) }, []string{"n1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.set(capacityObject("1", numbers("P", "5")))
			s.set(pvc("u1", "2", "n1"))
			s.set(pvc("u1", "3", ""))
			tc.steps(s)
			c := sized(tc.ask)
			s.set(c)
			q, err := s.Ask([]*corev1.PersistentVolumeClaim{c})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, slices.Sorted(maps.Keys(q.Pod.Delayed[0].Refused))); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
	// What is no refusal: a claim that got its volume, one that was deleted, and a
	// node that is gone.
	s := newStores(t)
	s.set(pvc("u1", "2", "n1"))
	bound := pvc("u1", "3", "")
	bound.Spec.VolumeName = "v"
	s.set(bound)
	s.set(pvc("u2", "4", "n1"))
	s.remove(pvc("u2", "4", "n1"))
	s.set(pvc("u3", "5", "n7"))
	s.set(pvc("u3", "6", ""))
	s.set(pvc("u4", "7", "n1"))
	s.set(pvc("u5", "8", ""))
	if len(s.refusals.byClass) > 0 {
		t.Errorf("refusals of nobody: %v", s.refusals.byClass)
	}
}

// TestSharing: classes of a driver that numbers nothing share a pool by rule.
func TestSharing(t *testing.T) {
	cases := map[string]struct {
		reason string
		rules  []Sharing
		want   bool
	}{
		"no rule":         {"an object is a pool of its own", nil, false},
		"all classes":     {"of the driver", []Sharing{{Driver: "d"}}, true},
		"other driver":    {"a rule of another driver", []Sharing{{Driver: "e"}}, false},
		"equal parameter": {"one device group", []Sharing{{Driver: "d", Parameter: "group"}}, true},
		"other parameter": {"two kinds of disk", []Sharing{{Driver: "d", Parameter: "disk"}}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.sharing = tc.rules
			mode := ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
			objects := []any{capacityObject("1", nil)}
			other := capacityObject("1", nil)
			other.Name, other.StorageClassName = "B-n1", "B"
			objects = append(objects, other)
			for _, o := range objects {
				s.set(o)
			}
			// The classes appear late.
			s.set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "A"}, Provisioner: "d", VolumeBindingMode: mode, Parameters: map[string]string{"group": "g", "disk": "ssd"}})
			s.set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "B"}, Provisioner: "d", VolumeBindingMode: mode, Parameters: map[string]string{"group": "g", "disk": "hdd"}})
			held := pvc("u1", "2", "n1")
			held.Spec.StorageClassName = new("B")
			s.set(held)
			want := int64(100)
			if tc.want {
				want = 70
			}
			if got := s.free(); got != want {
				t.Errorf("%s: %d free for class A, want %d", tc.reason, got, want)
			}
			if got := s.SharePool("A", "B"); got != tc.want {
				t.Errorf("%s: SharePool %t", tc.reason, got)
			}
			checkClean(t, s.ledger)
		})
	}
}
