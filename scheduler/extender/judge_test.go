package extender

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

const driver = volume.DriverName

// limited is a node's CSINode that takes so many volumes.
func limited(node string, count int32) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: driver, NodeID: node, Allocatable: &storagev1.VolumeNodeResources{Count: new(count)}},
	}}}
}

// onNode is a pod that is on the node with a bound claim of its own.
func onNode(name, node string) []runtime.Object {
	pod := fakeapi.Pod(name, name)
	pod.Spec.NodeName = node
	pv := fakeapi.PV("pv-"+name, "fast", "1Gi", node)
	claim := fakeapi.BoundTo(fakeapi.PVC(name, "fast", "1Gi"), pv.Name)
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	pv.Status.Phase = corev1.VolumeBound
	return []runtime.Object{pod, pv, claim}
}

func TestFilter(t *testing.T) {
	all := func(why string) map[string]string { return map[string]string{"n1": why, "n2": why} }
	cases := map[string]struct {
		reason string
		claims []string
		with   []runtime.Object
		want   map[string]string
	}{
		"no volumes":  {"nobody's business here", nil, nil, all("")},
		"room":        {"a pool too small is refused with what it has", []string{"a"}, []runtime.Object{fakeapi.PVC("a", "fast", "9Gi")}, map[string]string{"n1": "node(s) did not have enough free storage: claim default/a asks 9 GiB; the freest pool of class fast has 20 GiB", "n2": ""}},
		"no claim":    {"as upstream, from every node", []string{"a"}, nil, all("persistentvolumeclaim not found: default/a")},
		"no class":    {"as upstream: it is the PV controller's", []string{"a"}, []runtime.Object{fakeapi.PVC("a", "nowhere", "1Gi")}, all(`pod has unbound immediate PersistentVolumeClaims: claim default/a: its StorageClass "nowhere" does not exist`)},
		"not ours":    {"a driver that publishes nothing is judged as upstream would", []string{"a"}, []runtime.Object{fakeapi.Class("other", "other.driver"), fakeapi.PVC("a", "other", "9Ti")}, all("")},
		"bound":       {"where its volume is", []string{"on"}, onNode("on", "n2")[1:], map[string]string{"n1": "node(s) didn't match PersistentVolume's node affinity: claim default/on is bound to pv-on, at kubernetes.io/hostname=n2", "n2": ""}},
		"attach full": {"evicting may help, and a node without a limit takes it", []string{"a"}, append(onNode("on", "n2"), limited("n2", 1), fakeapi.PVC("a", "fast", "1Gi")), map[string]string{"n1": "", "n2": "evictable: node(s) exceed max volume count: driver " + driver + ", 1 more asked"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := start(t, pool(t, map[string]string{"n1": "8Gi", "n2": "20Gi"}, tc.with...))
			got := r.verdicts(fakeapi.Pod("web", tc.claims...), "n1", "n2")
			equal(t, tc.reason, tc.want, got)
		})
	}
}

// TestFilterUnknownNode: kube-scheduler may know a node first; the node is refused
// until it is known, and no error keeps the pod from the others.
func TestFilterUnknownNode(t *testing.T) {
	r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "1Gi")))
	got := r.verdicts(fakeapi.Pod("web", "a"), "n1", "n9")
	equal(t, "n9 is not in the informer", map[string]string{"n1": "", "n9": "evictable: " + notKnown}, got)
}

// TestNoSideEffects: judging promises nothing, however often it is asked.
func TestNoSideEffects(t *testing.T) {
	r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "8Gi"), fakeapi.PVC("b", "fast", "8Gi")))
	for range 3 {
		for _, claim := range []string{"a", "b"} {
			pod := fakeapi.Pod("web-"+claim, claim)
			equal(t, "each fits as if it were alone", map[string]string{"n1": ""}, r.verdicts(pod, "n1"))
			if _, err := r.Prioritize(t.Context(), pod, []string{"n1"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := r.Promises(); n != 0 {
		t.Errorf("%d pods are promised something", n)
	}
}

func TestPrioritize(t *testing.T) {
	r := start(t, pool(t, map[string]string{"n1": "8Gi", "n2": "80Gi", "n3": "2Gi"}, fakeapi.PVC("a", "fast", "4Gi")))
	names := []string{"n1", "n2", "n3", "n9"}
	got, err := r.Prioritize(t.Context(), fakeapi.Pod("web", "a"), names)
	if err != nil {
		t.Fatal(err)
	}
	want := extenderv1.HostPriorityList{{Host: "n1", Score: 5}, {Host: "n2", Score: 10}, {Host: "n3"}, {Host: "n9"}}
	equal(t, "the emptiest is best; where it does not fit, or is not known, 0", want, got)
	got, err = r.Prioritize(t.Context(), fakeapi.Pod("plain"), names)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "a pod without volumes has no preference", extenderv1.HostPriorityList{{Host: "n1"}, {Host: "n2"}, {Host: "n3"}, {Host: "n9"}}, got)
}

// TestPreempt: of two full nodes the one whose victim has a volume takes the pod;
// nothing that is evicted makes room in a pool.
func TestPreempt(t *testing.T) {
	plain := fakeapi.Pod("plain")
	plain.Spec.NodeName = "n2"
	c := pool(t, map[string]string{"n1": "8Gi", "n2": "8Gi", "n3": "1Mi"}, append(append(onNode("one", "n1"), onNode("two", "n2")...),
		plain, limited("n1", 1), limited("n2", 1), fakeapi.PVC("a", "fast", "1Gi"))...)
	r := start(t, c)
	victim := func(uid string) *extenderv1.MetaVictims {
		return &extenderv1.MetaVictims{NumPDBViolations: 1, Pods: []*extenderv1.MetaPod{{UID: uid}, nil}}
	}
	offered := map[string]*extenderv1.MetaVictims{"n1": victim("uid-one"), "n2": victim("uid-plain"), "n3": victim("x"), "n9": victim("x"), "n8": nil}
	got, err := r.Preempt(t.Context(), fakeapi.Pod("web", "a"), offered)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "n1 alone", map[string]*extenderv1.MetaVictims{"n1": victim("uid-one")}, got.NodeNameToMetaVictims)
	equal(t, "nothing was evicted", map[string]string{"n1": "evictable: node(s) exceed max volume count: driver " + driver + ", 1 more asked"}, r.verdicts(fakeapi.Pod("web", "a"), "n1"))
}

// TestPreemptShuns: nobody is evicted for a node that gave the claim back lately, as
// long as another has room for it, even if that is no candidate.
func TestPreemptShuns(t *testing.T) {
	cases := map[string]struct {
		reason string
		other  string
		want   []string
	}{
		"room":    {"filter refuses the node, and so does preempt", "8Gi", nil},
		"no room": {"the last choice is one", "1Mi", []string{"n1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := fakeapi.PVC("a", "fast", "1Gi")
			claim.Annotations = map[string]string{volume.AnnSelectedNode: "n1"}
			r := start(t, pool(t, map[string]string{"n1": "8Gi", "n2": tc.other}, claim))
			r.Put(fakeapi.PVC("a", "fast", "1Gi"))
			r.seen("the claim is given back", func() bool {
				now := r.cache.ClaimByKey(claim.Namespace + "/a")
				return now.Annotations[volume.AnnSelectedNode] == ""
			})
			got, err := r.Preempt(t.Context(), fakeapi.Pod("web", "a"), map[string]*extenderv1.MetaVictims{"n1": {}})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, tc.reason, tc.want, slices.Collect(maps.Keys(got.NodeNameToMetaVictims)))
		})
	}
}
