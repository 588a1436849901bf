package story

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/volume"
)

func TestCausesOf(t *testing.T) {
	cases := map[string]struct {
		reason  string
		nodes   int
		message string
		want    []string
		wantErr string
	}{
		"two causes": {
			"what follows of preemption is no cause", 3,
			"0/3 nodes are available: 1 node(s) lie elsewhere: zone=a,b, 2 node(s) are full: claim x asks 1 TiB; the freest has 2 GiB. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
			[]string{"1 node(s) lie elsewhere: zone=a,b", "2 node(s) are full: claim x asks 1 TiB; the freest has 2 GiB"},
			"",
		},
		"a comma within": {
			"claims of one pod are listed in one cause", 2,
			"0/2 nodes are available: 2 node(s) are full: claims a, b ask 1 TiB together.",
			[]string{"2 node(s) are full: claims a, b ask 1 TiB together"},
			"",
		},
		"a node twice":    {"a node that is refused twice would be counted twice", 2, "0/2 nodes are available: 1 x, 2 y.", nil, "count 3 nodes"},
		"a node missing":  {"a node without a cause is not explained", 3, "0/3 nodes are available: 2 y.", nil, "count 2 nodes"},
		"another cluster": {"another number of nodes", 3, "0/2 nodes are available: 2 y.", nil, "number of nodes"},
		"no number":       {"a cause without a number", 3, "0/3 nodes are available: some are full.", nil, "begin with a cause"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := causesOf(tc.message, tc.nodes)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("%s: %v, want %q in it", tc.reason, err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

const mountTable = `22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
107 22 7:9 / /pods/a/mount rw,noatime shared:9 master:2 - xfs /dev/loop9 rw,attr2
108 22 7:10 / /pods/b/mount ro - ext4 /dev/loop10 ro
`

func TestParseMounts(t *testing.T) {
	rows, err := parseMounts(mountTable)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]mountRow{"/pods/a/mount": {"107", "/pods/a/mount", "xfs", "/dev/loop9"}}
	if diff := cmp.Diff(want, mountsOf(rows, map[string]bool{"/dev/loop9": true, "/dev/loop1": true}), cmp.AllowUnexported(mountRow{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(rows) != 3 {
		t.Errorf("%d rows, want 3", len(rows))
	}
	for _, bad := range []string{"22 1 253:0 / / rw,relatime ext4 /dev/vda rw\n", "22 1 - ext4 /dev/vda rw\n", "22 1 253:0 / / rw - ext4\n"} {
		if rows, err := parseMounts(bad); err == nil {
			t.Errorf("%q gave %v: a table that cannot be read proves nothing", bad, rows)
		}
	}
}

func podInState(name string, ready corev1.ConditionStatus, deleting bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{
		Phase:      corev1.PodPending,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
	}}
	if deleting {
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	return p
}

func TestNotReady(t *testing.T) {
	have := map[string]*corev1.Pod{
		"ready":   podInState("ready", corev1.ConditionTrue, false),
		"waiting": podInState("waiting", corev1.ConditionFalse, false),
		"leaving": podInState("leaving", corev1.ConditionTrue, true),
	}
	cases := map[string]struct {
		reason string
		names  []string
		want   string
	}{
		"ready":   {"others do not matter", []string{"ready"}, ""},
		"waiting": {"says where it is", []string{"ready", "waiting"}, `waiting is Pending on node ""`},
		"leaving": {"a pod that goes is not one that came", []string{"leaving"}, "leaving is being deleted"},
		"absent":  {"is told from one that waits", []string{"absent"}, "absent does not exist"},
		"several": {"the first, and how many", []string{"absent", "waiting", "leaving"}, "absent does not exist, and 2 more"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := notReady(have, tc.names); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestRoomOf(t *testing.T) {
	object := func(class, node string, bytes int64) *storagev1.CSIStorageCapacity {
		return &storagev1.CSIStorageCapacity{
			StorageClassName: class, Capacity: quantity(bytes),
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{volume.TopologyNodeKey: node}},
		}
	}
	unset := object("a", "node-3", 0)
	unset.Capacity = nil
	got := roomOf(map[string]*storagev1.CSIStorageCapacity{
		"1": object("a", "node-1", 5), "2": object("b", "node-1", 6), "3": object("a", "node-2", 7), "4": unset,
	}, "a")
	if diff := cmp.Diff(map[string]int64{"node-1": 5, "node-2": 7}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestWanted holds what the story waits for against worlds that are not yet so.
func TestWanted(t *testing.T) {
	pv := func(class string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{StorageClassName: class}, Status: corev1.PersistentVolumeStatus{Phase: phase}}
	}
	volumes := map[string]*corev1.PersistentVolume{"a": pv("x", corev1.VolumeAvailable), "b": pv("x", corev1.VolumeBound)}
	claims := map[string]*corev1.PersistentVolumeClaim{
		"a": {Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}},
		"b": {Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}},
	}
	events := map[string]*corev1.Event{
		"1": {InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p"}, Reason: "Scheduled", ReportingController: "default-scheduler"},
		"2": {InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "q"}, Reason: "FailedScheduling", ReportingController: "berth-scheduler"},
	}
	cases := map[string]struct{ got, want string }{
		"available":            {available("a")(volumes), ""},
		"not available":        {available("a", "b")(volumes), "b is not Available"},
		"absent volume":        {available("c")(volumes), "c is not Available"},
		"volumes of class":     {ofClass("x", 2)(volumes), ""},
		"one too many":         {ofClass("x", 1)(volumes), "2 volumes of class x, want 1"},
		"bound":                {bound("a")(claims), ""},
		"not bound":            {bound("a", "b")(claims), "claim b is not Bound"},
		"gone":                 {gone[*corev1.PersistentVolumeClaim]("c")(claims), ""},
		"not gone":             {gone[*corev1.PersistentVolumeClaim]("c", "b")(claims), "b is still there"},
		"none":                 {none(map[string]int{}), ""},
		"some":                 {none(claims), "2 are still there, such as a"},
		"scheduled":            {scheduledBy("p", "default-scheduler")(events), ""},
		"scheduled by another": {scheduledBy("p", "berth-scheduler")(events), `pod p was scheduled by "default-scheduler", want berth-scheduler`},
		"not scheduled":        {scheduledBy("q", "berth-scheduler")(events), "pod q has no event Scheduled"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("got %q, want %q", tc.got, tc.want)
			}
		})
	}
	if got := countBound(claims, []string{"a", "b", "c"}); got != 1 {
		t.Errorf("%d claims are bound, want 1", got)
	}
}

func TestVoice(t *testing.T) {
	var out strings.Builder
	v := newVoice(&out, time.Now())
	v.close() // silence is broken by hand below
	later := func() time.Time { return v.last.Add(silenceMax) }
	v.heading(1, "A step")
	v.breakSilence(later())
	v.wait("waiting for pods: p")
	v.breakSilence(v.last.Add(silenceMax / 2))
	v.breakSilence(later())
	v.say("it is so")
	v.breakSilence(later())
	v.more("and so")
	want := "\n1. A step\n" +
		"   0.0s  …   waiting for pods: p\n" +
		"   0.0s  ok  it is so\n" +
		"             and so\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestPidOf(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{ContainerID: "berth-sandbox://42@1000"}}}}
	if got, err := inside(pod, "/data/words"); err != nil || got != "/proc/42/root/data/words" {
		t.Errorf("inside: %q, %v", got, err)
	}
	pod.Status.ContainerStatuses[0].ContainerID = ""
	if pid, err := pidOf(pod); err == nil {
		t.Errorf("a container that does not run has pid %d", pid)
	}
}
