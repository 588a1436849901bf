package plugin

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

const (
	noVolume   = "node(s) didn't find available persistent volumes to bind"
	noAffinity = "node(s) didn't match PersistentVolume's node affinity"
	noSpace    = "node(s) did not have enough free storage"
	noPV       = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
	unboundYet = "pod has unbound immediate PersistentVolumeClaims"
)

type findCase struct {
	reason  string
	objects func(k caseName) []runtime.Object
	claims  []string
	// want are the sentences that n1 is refused with; plan is what would be
	// written for n1 where it is not.
	want []string
	plan string
}

// runFind judges n1 for each case's pod.
func runFind(t *testing.T, cases map[string]findCase, pods map[string]*corev1.Pod) {
	t.Helper()
	var objects []runtime.Object
	for title, tc := range cases {
		if tc.objects != nil {
			objects = append(objects, tc.objects(nameOf(title))...)
		}
	}
	r := caseRig(t, objects...)
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			k := nameOf(title)
			pod := pods[title]
			if pod == nil {
				pod = k.pod(tc.claims...)
			}
			cy, refused := r.judge(pod)
			var got []string
			if all, no := refused["n1"]; no {
				all = strings.TrimPrefix(all, "UnschedulableAndUnresolvable: ")
				for one := range strings.SplitSeq(all, ", node(s)") {
					sentence, _, _ := strings.Cut(one, ": ")
					if !slices.Contains([]string{"pod", "per"}, sentence[:3]) && !strings.HasPrefix(sentence, "node(s)") {
						sentence = "node(s)" + sentence
					}
					got = append(got, sentence)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Fatalf("%s: (-want +got)\n%s\n%s", tc.reason, diff, refused["n1"])
			}
			if len(got) > 0 {
				return
			}
			s, err := readState(cy.state)
			if err != nil {
				t.Fatal(err)
			}
			if s.none {
				if tc.plan != "nothing" {
					t.Errorf("%s: nothing was judged", tc.reason)
				}
				return
			}
			plan, status := r.plugin.plan(s, "n1")
			if !status.IsSuccess() {
				t.Fatal(status)
			}
			steps := strings.Split(strings.TrimSpace(k.plain(plan.String())), "\n")[1:]
			if got := strings.Join(steps, "; "); got != tc.plan {
				t.Errorf("%s: planned %q, want %q", tc.reason, got, tc.plan)
			}
		})
	}
}

// TestFindVolumes: claims that only existing volumes can serve (upstream:
// TestFindPodVolumesWithoutProvisioning).
func TestFindVolumes(t *testing.T) {
	config := fakeapi.Pod("config")
	config.Spec.Volumes = []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}}}
	ephemeral := func(title string) *corev1.Pod {
		pod := fakeapi.Pod(string(nameOf(title)) + "pod")
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}}}
		return pod
	}
	pods := map[string]*corev1.Pod{"only other volumes": config, "ephemeral, claim missing": ephemeral("ephemeral, claim missing"), "ephemeral": ephemeral("ephemeral"), "ephemeral, foreign": ephemeral("ephemeral, foreign")}
	made := func(k caseName, owner *corev1.Pod) []runtime.Object {
		pvc := k.pvc("pod-v", "local", "1Gi")
		if owner != nil {
			pvc.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Pod"))}
		}
		return []runtime.Object{k.class("local", noProvisioner), pvc, k.pv("pv", "local", "1Gi", "n1")}
	}
	with := func(more func(k caseName) []runtime.Object) func(caseName) []runtime.Object {
		return func(k caseName) []runtime.Object {
			return append(more(k), k.class("local", noProvisioner), k.immediate("now"))
		}
	}
	runFind(t, map[string]findCase{
		"no volumes":         {reason: "nothing is asked", plan: "nothing"},
		"only other volumes": {reason: "nothing is asked", plan: "nothing"},
		"claim missing":      {reason: "no node helps", claims: []string{"a"}, want: []string{"persistentvolumeclaim not found"}},
		"bound": {reason: "nothing is to be done", claims: []string{"a"}, objects: with(func(k caseName) []runtime.Object {
			return k.bound("a", "local", "n1")
		})},
		"bound elsewhere": {reason: "the volume stays where it is", claims: []string{"a"}, want: []string{noAffinity}, objects: with(func(k caseName) []runtime.Object {
			return k.bound("a", "local", "n2")
		})},
		"bound, volume missing": {reason: "the claim's data are gone", claims: []string{"a"}, want: []string{noPV}, objects: with(func(k caseName) []runtime.Object {
			return k.bound("a", "local", "n1")[:1]
		})},
		"half bound": {reason: "the PV controller is at work", claims: []string{"a"}, want: []string{unboundYet}, objects: with(func(k caseName) []runtime.Object {
			pvc := k.pvc("a", "local", "1Gi")
			pvc.Spec.VolumeName = string(k) + "pv"
			return []runtime.Object{pvc, k.pv("pv", "local", "1Gi", "n1")}
		})},
		"volume here": {reason: "it fits", claims: []string{"a"}, plan: "bind default/a to pv", objects: with(func(k caseName) []runtime.Object {
			return []runtime.Object{k.pvc("a", "local", "1Gi"), k.pv("pv", "local", "1Gi", "n1")}
		})},
		"volume elsewhere": {reason: "none is here", claims: []string{"a"}, want: []string{noVolume}, objects: with(func(k caseName) []runtime.Object {
			return []runtime.Object{k.pvc("a", "local", "1Gi"), k.pv("pv", "local", "1Gi", "n2")}
		})},
		"two claims": {reason: "each gets its own", claims: []string{"a", "b"}, plan: "bind default/a to pv1; bind default/b to pv2", objects: with(func(k caseName) []runtime.Object {
			return []runtime.Object{k.pvc("a", "local", "1Gi"), k.pvc("b", "local", "2Gi"), k.pv("pv1", "local", "1Gi", "n1"), k.pv("pv2", "local", "2Gi", "n1")}
		})},
		"large claim first": {reason: "the order in the pod does not waste the large volume", claims: []string{"b", "a"}, plan: "bind default/a to pv1; bind default/b to pv2", objects: with(func(k caseName) []runtime.Object {
			return []runtime.Object{k.pvc("a", "local", "1Gi"), k.pvc("b", "local", "2Gi"), k.pv("pv1", "local", "1Gi", "n1"), k.pv("pv2", "local", "2Gi", "n1")}
		})},
		"one of two matches": {reason: "half a pod cannot run", claims: []string{"a", "b"}, want: []string{noVolume}, objects: with(func(k caseName) []runtime.Object {
			return []runtime.Object{k.pvc("a", "local", "1Gi"), k.pvc("b", "local", "2Gi"), k.pv("pv1", "local", "1Gi", "n1")}
		})},
		"bound and unbound": {reason: "only the unbound is planned", claims: []string{"a", "b"}, plan: "bind default/b to pv", objects: with(func(k caseName) []runtime.Object {
			return append(k.bound("a", "local", "n1"), k.pvc("b", "local", "1Gi"), k.pv("pv", "local", "1Gi", "n1"))
		})},
		"bound and no match": {reason: "a bound claim is no volume for another", claims: []string{"a", "b"}, want: []string{noVolume}, objects: with(func(k caseName) []runtime.Object {
			return append(k.bound("a", "local", "n1"), k.pvc("b", "local", "1Gi"))
		})},
		"both unsatisfied": {reason: "both causes are told", claims: []string{"a", "b"}, want: []string{noAffinity, noVolume}, objects: with(func(k caseName) []runtime.Object {
			return append(k.bound("a", "local", "n2"), k.pvc("b", "local", "1Gi"))
		})},
		"half bound and unbound": {reason: "the half bound one is waited for", claims: []string{"a", "b"}, want: []string{unboundYet}, objects: with(func(k caseName) []runtime.Object {
			pvc := k.pvc("a", "local", "1Gi")
			pvc.Spec.VolumeName = string(k) + "pv"
			return []runtime.Object{pvc, k.pv("pv", "local", "1Gi", "n1"), k.pvc("b", "local", "1Gi"), k.pv("pv2", "local", "1Gi", "n1")}
		})},
		"immediate, bound": {reason: "how it was bound does not matter", claims: []string{"a"}, objects: with(func(k caseName) []runtime.Object {
			return k.bound("a", "now", "n1")
		})},
		"immediate, bound elsewhere": {reason: "how it was bound does not matter", claims: []string{"a"}, want: []string{noAffinity}, objects: with(func(k caseName) []runtime.Object {
			return k.bound("a", "now", "n2")
		})},
		"immediate, unbound": {reason: "the PV controller's own business", claims: []string{"a"}, want: []string{unboundYet}, objects: with(func(k caseName) []runtime.Object {
			return []runtime.Object{k.pvc("a", "now", "1Gi"), k.pv("pv", "now", "1Gi", "n1")}
		})},
		"immediate, beside a bound one": {reason: "the other is ready", claims: []string{"a", "b"}, want: []string{unboundYet}, objects: with(func(k caseName) []runtime.Object {
			return append(k.bound("b", "local", "n1"), k.pvc("a", "now", "1Gi"))
		})},
		"immediate, beside a delayed one": {reason: "nothing is bound for a pod that cannot run", claims: []string{"a", "b"}, want: []string{unboundYet}, objects: with(func(k caseName) []runtime.Object {
			return []runtime.Object{k.pvc("a", "now", "1Gi"), k.pvc("b", "local", "1Gi"), k.pv("pv", "local", "1Gi", "n1")}
		})},
		"ephemeral, claim missing": {reason: "its controller is late", want: []string{"persistentvolumeclaim not found"}},
		"ephemeral":                {reason: "a claim as any other", plan: "bind default/pod-v to pv", objects: func(k caseName) []runtime.Object { return made(k, pods["ephemeral"]) }},
		"ephemeral, foreign":       {reason: "somebody else's claim", want: []string{"persistentvolumeclaim was not created for the pod"}, objects: func(k caseName) []runtime.Object { return made(k, nil) }},
	}, pods)
}

// TestFindProvisioning: claims that can be provisioned, by drivers that track
// capacity, that do not, and that are unknown (upstream:
// TestFindPodVolumesWithProvisioning).
func TestFindProvisioning(t *testing.T) {
	cases := map[string]findCase{}
	for driver, provisioner := range map[string]string{"unknown": "unknown.driver", "untracked": "untracked.driver", "tracked": driverName} {
		with := func(more func(k caseName) []runtime.Object) func(caseName) []runtime.Object {
			return func(k caseName) []runtime.Object {
				objects := append(more(k), k.class("dyn", provisioner), k.class("local", noProvisioner), k.immediate("now"), k.class("none", ""),
					k.class("far", provisioner, volume.LabelZone, "z9"), k.capacity("dyn", "n1", "8Gi", ""), k.capacity("far", "n1", "8Gi", ""))
				if driver == "untracked" {
					d := fakeapi.Driver(provisioner)
					d.Spec.StorageCapacity = new(false)
					objects = append(objects, d)
				}
				return objects
			}
		}
		for title, tc := range map[string]findCase{
			"one": {reason: "it is made here", claims: []string{"a"}, plan: "provision default/a", objects: with(func(k caseName) []runtime.Object { return []runtime.Object{k.pvc("a", "dyn", "1Gi")} })},
			"one matched": {reason: "a volume that exists is taken first", claims: []string{"a", "b"}, plan: "bind default/a to pv; provision default/b", objects: with(func(k caseName) []runtime.Object {
				return []runtime.Object{k.pvc("a", "dyn", "1Gi"), k.pvc("b", "dyn", "2Gi"), k.pv("pv", "dyn", "1Gi", "n1")}
			})},
			"one bound": {reason: "only the other is made", claims: []string{"a", "b"}, plan: "provision default/b", objects: with(func(k caseName) []runtime.Object {
				return append(k.bound("a", "local", "n1"), k.pvc("b", "dyn", "1Gi"))
			})},
			"one selected": {reason: "a provisioner is at work, so no volume is taken for it", claims: []string{"a", "b"}, plan: "bind default/a to pv; provision default/b", objects: with(func(k caseName) []runtime.Object {
				return []runtime.Object{k.pvc("a", "local", "1Gi"), k.pv("pv", "local", "1Gi", "n1"), selectedFor(k.pvc("b", "dyn", "1Gi"), "n1"), k.pv("pv2", "dyn", "1Gi", "n1")}
			})},
			"selected elsewhere": {reason: "a provisioner is at work there", claims: []string{"a"}, want: []string{noVolume}, objects: with(func(k caseName) []runtime.Object {
				return []runtime.Object{selectedFor(k.pvc("a", "dyn", "1Gi"), "n2")}
			})},
			"immediate beside": {reason: "the PV controller is first", claims: []string{"a", "b"}, want: []string{unboundYet}, objects: with(func(k caseName) []runtime.Object {
				return []runtime.Object{k.pvc("a", "now", "1Gi"), k.pvc("b", "dyn", "1Gi")}
			})},
			"immediate bound beside": {reason: "it is ready", claims: []string{"a", "b"}, plan: "provision default/b", objects: with(func(k caseName) []runtime.Object { return append(k.bound("a", "now", "n1"), k.pvc("b", "dyn", "1Gi")) })},
			"no provisioner":         {reason: "nobody makes it", claims: []string{"a"}, want: []string{noVolume}, objects: with(func(k caseName) []runtime.Object { return []runtime.Object{k.pvc("a", "none", "1Gi")} })},
			"topology":               {reason: "the class leaves the node out", claims: []string{"a"}, want: []string{noVolume}, objects: with(func(k caseName) []runtime.Object { return []runtime.Object{k.pvc("a", "far", "1Gi")} })},
		} {
			cases[driver+" "+title] = tc
		}
	}
	runFind(t, cases, nil)
}

// TestFindCapacity: published capacity (upstream: TestCapacity).
func TestFindCapacity(t *testing.T) {
	with := func(more func(k caseName) []runtime.Object) func(caseName) []runtime.Object {
		return func(k caseName) []runtime.Object {
			return append(more(k), k.class("dyn", driverName), k.class("other", driverName), k.pvc("a", "dyn", "1Gi"))
		}
	}
	of := func(size, maximum string) func(caseName) []runtime.Object {
		return with(func(k caseName) []runtime.Object { return []runtime.Object{k.capacity("dyn", "n1", size, maximum)} })
	}
	a, fits := []string{"a"}, "provision default/a"
	cases := map[string]findCase{
		"everywhere": {reason: "an empty selector is every node", claims: a, plan: fits, objects: with(func(k caseName) []runtime.Object {
			o := k.capacity("dyn", "n1", "1Gi", "")
			o.NodeTopology = &metav1.LabelSelector{}
			return []runtime.Object{o}
		})},
		"nowhere": {reason: "no selector is no node", claims: a, want: []string{noSpace}, objects: with(func(k caseName) []runtime.Object {
			o := k.capacity("dyn", "n1", "1Gi", "")
			o.NodeTopology = nil
			return []runtime.Object{o}
		})},
		"unreadable": {reason: "a selector that cannot be read is no node", claims: a, want: []string{noSpace}, objects: with(func(k caseName) []runtime.Object {
			o := k.capacity("dyn", "n1", "1Gi", "")
			o.NodeTopology = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Near"}}}
			return []runtime.Object{o}
		})},
		"here": {reason: "it is enough to the byte", claims: a, plan: fits, objects: of("1Gi", "")},
		"several": {reason: "the one that is here counts", claims: a, plan: fits, objects: with(func(k caseName) []runtime.Object {
			return []runtime.Object{k.capacity("dyn", "n2", "1Mi", ""), k.capacity("dyn", "n1", "1Gi", "")}
		})},
		"none":                 {reason: "a driver that tracks and publishes nothing has nothing", claims: a, want: []string{noSpace}, objects: with(func(caseName) []runtime.Object { return nil })},
		"other node":           {reason: "it is elsewhere", claims: a, want: []string{noSpace}, objects: with(func(k caseName) []runtime.Object { return []runtime.Object{k.capacity("dyn", "n2", "1Gi", "")} })},
		"other class":          {reason: "it is for others", claims: a, want: []string{noSpace}, objects: with(func(k caseName) []runtime.Object { return []runtime.Object{k.capacity("other", "n1", "1Gi", "")} })},
		"too small":            {reason: "a byte short is short", claims: a, want: []string{noSpace}, objects: of("1023Mi", "")},
		"volume too large":     {reason: "one volume may not be so large", claims: a, want: []string{noSpace}, objects: of("8Gi", "1Mi")},
		"only a volume's size": {reason: "nothing else is bounded", claims: a, plan: fits, objects: of("", "1Gi")},
		"zero":                 {reason: "full", claims: a, want: []string{noSpace}, objects: of("0", "")},
		"zero volume":          {reason: "no volume can be made", claims: a, want: []string{noSpace}, objects: of("", "0")},
		"nothing published":    {reason: "an object without figures offers nothing", claims: a, want: []string{noSpace}, objects: of("", "")},
		"no size asked": {reason: "a claim without a size fits", claims: []string{"b"}, plan: "provision default/b", objects: with(func(k caseName) []runtime.Object {
			b := k.pvc("b", "dyn", "1Gi")
			b.Spec.Resources.Requests = nil
			return []runtime.Object{b}
		})},
	}
	runFind(t, cases, nil)
}

// TestFindMigrated: on a node that handles a plugin as CSI, its volumes are where
// the driver says (upstream: TestFindPodVolumesWithCSIMigration).
func TestFindMigrated(t *testing.T) {
	here, there := nameOf("here"), nameOf("there")
	objects := append(here.migrated("a", "z2"), there.migrated("a", "z1")...)
	r := caseRig(t, append(objects, here.class("local", noProvisioner), there.class("local", noProvisioner))...)
	for name, tc := range map[string]struct {
		reason string
		pod    *corev1.Pod
		want   []string
	}{
		"the driver's zone":  {"n1 is in it to the driver; the others go by their own label", here.pod("a"), []string{"n2", "n3"}},
		"the cluster's zone": {"n1 alone goes by the driver's: not migrated and no CSINode do not", there.pod("a"), []string{"n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, refused := r.judge(tc.pod)
			if diff := cmp.Diff(tc.want, keys(refused)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
			for node, why := range refused {
				if !strings.Contains(why, noAffinity) {
					t.Errorf("%s is refused with %q", node, why)
				}
			}
		})
	}
}
