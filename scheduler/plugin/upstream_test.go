package plugin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/test/seeds"
	"github.com/berth-storage/berth/volume"
)

// randomCluster makes small clusters on which upstream is right: at most one
// claim to provision from tracked capacity, selectors only on a claim that is
// alone, no holds, no volume reserved out of reach of a class that provisions.
func randomCluster(r *rand.Rand) (objects []runtime.Object, pod *corev1.Pod) {
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	size := func() string { return fmt.Sprintf("%dGi", 1+r.IntN(5)) }
	nodes := []string{"n1", "n2", "n3"}
	for _, n := range nodes {
		objects = append(objects, fakeapi.Node(n, volume.LabelZone, pick("z1", "z2"), "rank", strconv.Itoa(r.IntN(3))))
	}
	topologies := func() []string {
		if r.IntN(3) > 0 {
			return nil
		}
		return []string{volume.LabelZone, pick("z1", "z2"), volume.LabelHostname, pick(nodes...)}[:2+2*r.IntN(2)]
	}
	immediate := fakeapi.Class("immediate", driverName)
	immediate.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	objects = append(objects, fakeapi.Driver(driverName), immediate, fakeapi.Class("local", "kubernetes.io/no-provisioner"),
		fakeapi.Class("tracked", driverName, topologies()...), fakeapi.Class("untracked", "other.driver", topologies()...))
	for _, n := range nodes {
		if r.IntN(4) > 0 {
			o := fakeapi.Capacity("tracked", n, size(), 1)
			if r.IntN(4) == 0 {
				o.MaximumVolumeSize = new(o.Capacity.DeepCopy())
				o.MaximumVolumeSize.Sub(*fakeapi.PVC("", "", "1Gi").Spec.Resources.Requests.Storage())
			}
			objects = append(objects, o)
		}
	}
	names := []string{"a", "b", "c"}[:1+r.IntN(3)]
	pod = fakeapi.Pod("p", names...)
	objects = append(objects, pod)
	tracked := false
	for _, name := range names {
		class := pick("local", "local", "tracked", "untracked", "none", "immediate")
		if class == "none" || class == "immediate" {
			class = pick("local", "local", "local", class)
		}
		if class == "tracked" && tracked {
			class = "local"
		}
		tracked = tracked || class == "tracked"
		pvc := fakeapi.PVC(name, class, size())
		switch r.IntN(8) {
		case 0:
			pvc = fakeapi.BoundTo(pvc, "pv"+strconv.Itoa(r.IntN(6)))
		case 1:
			pvc = fakeapi.BoundTo(pvc, "bound-"+name)
			objects = append(objects, fakeapi.PV("bound-"+name, class, "1Gi", pick(nodes...)))
		case 2:
			if class == "untracked" {
				metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnSelectedNode, pick(nodes...))
			}
		case 3:
			if r.IntN(4) == 0 {
				pvc.Spec.VolumeName = "half"
			}
		}
		if r.IntN(5) == 0 {
			pvc.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}
		if len(names) == 1 && r.IntN(3) == 0 {
			pvc.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"color": pick("red", "blue")}}
		}
		objects = append(objects, pvc)
	}
	reserved := map[string]bool{}
	for i := range r.IntN(6) {
		pv := fakeapi.PV(fmt.Sprint("pv", i), pick("local", "local", "tracked", "untracked"), size(), "")
		pv.Labels = map[string]string{"color": pick("red", "blue")}
		pv.Spec.NodeAffinity = randomAffinity(r, nodes)
		if r.IntN(5) == 0 {
			pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}
		if r.IntN(8) == 0 {
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		}
		if r.IntN(8) == 0 {
			pv.Status.Phase = corev1.VolumeReleased
		}
		if name := pick(names...); pv.Spec.StorageClassName == "local" && r.IntN(5) == 0 && !reserved[name] {
			reserved[name] = true
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name}
			if r.IntN(3) == 0 {
				pv.Spec.ClaimRef.UID = "someone"
			}
		}
		objects = append(objects, pv)
	}
	return objects, pod
}

func randomAffinity(r *rand.Rand, nodes []string) *corev1.VolumeNodeAffinity {
	if r.IntN(6) == 0 {
		return nil
	}
	s := &corev1.NodeSelector{}
	for range 1 + r.IntN(2) {
		e := corev1.NodeSelectorRequirement{Key: volume.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{nodes[r.IntN(3)]}}
		switch r.IntN(6) {
		case 0:
			e.Operator = corev1.NodeSelectorOpNotIn
		case 1:
			e = corev1.NodeSelectorRequirement{Key: volume.LabelZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z1", "z2"}[:1+r.IntN(2)]}
		case 2:
			e = corev1.NodeSelectorRequirement{Key: "rank", Operator: corev1.NodeSelectorOpGt, Values: []string{"0"}}
		case 3:
			e = corev1.NodeSelectorRequirement{Key: "absent", Operator: corev1.NodeSelectorOpDoesNotExist}
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}})
	}
	return &corev1.VolumeNodeAffinity{Required: s}
}

// volumesPlugin is what both plugins implement.
type volumesPlugin interface {
	fwk.PreFilterPlugin
	fwk.FilterPlugin
	fwk.ScorePlugin
}

// answers are code, sentences and score of each node, in words.
func answers(ctx context.Context, t *testing.T, p volumesPlugin, pod *corev1.Pod, infos []fwk.NodeInfo) map[string]string {
	t.Helper()
	out := map[string]string{}
	state := framework.NewCycleState()
	_, pre := p.PreFilter(ctx, state, pod, infos)
	for _, info := range infos {
		s := pre
		if s.IsSuccess() {
			s = p.Filter(ctx, state, pod, info)
		}
		text := s.Code().String()
		if pre.IsSuccess() && s != nil {
			sentences := map[string]bool{}
			for _, reason := range s.Reasons() {
				sentence, _, _ := strings.Cut(reason, ": ")
				sentences[sentence] = true
			}
			text += " " + strings.Join(keys(sentences), "; ")
		}
		if s.IsSuccess() {
			score, status := p.Score(ctx, state, pod, info)
			text += fmt.Sprintf(" score %d %s", score, status.Code())
		}
		out[info.Node().Name] = text
	}
	return out
}

// TestLikeUpstream: on clusters where upstream's VolumeBinding is right, both
// answer every node with the same code, the same sentences and the same score.
func TestLikeUpstream(t *testing.T) {
	count := map[string]int{}
	rounds := seeds.Rounds(t, 80, func(seed uint64, r *rand.Rand) {
		objects, pod := randomCluster(r)
		ctx, cancel := context.WithCancel(t.Context())
		rig := newCluster(t, objects...).start(ctx)
		theirs, err := volumebinding.New(ctx, &config.VolumeBindingArgs{BindTimeoutSeconds: 600, Shape: []config.UtilizationShapePoint{
			{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0},
		}}, rig.framework.(fwk.Handle),
			feature.Features{EnableVolumeAttributesClass: true, EnableStorageCapacityScoring: true})
		if err != nil {
			t.Fatal(err)
		}
		infos, err := rig.framework.SnapshotSharedLister().NodeInfos().List()
		if err != nil {
			t.Fatal(err)
		}
		want := answers(ctx, t, theirs.(volumesPlugin), pod, infos)
		got := answers(ctx, t, rig.plugin, pod, infos)
		if diff := cmp.Diff(want, got); diff != "" {
			for _, o := range objects {
				text, err := yaml.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%T\n%s", o, text)
			}
			t.Fatalf("seed %d: (-upstream +berth)\n%s", seed, diff)
		}
		for _, w := range want {
			kind, _, _ := strings.Cut(w, " score")
			count[kind]++
		}
		cancel()
	})
	if rounds < 80 {
		return
	}
	// Every kind of answer must have been compared, or the generator is at fault.
	for _, kind := range []string{"Success", "UnschedulableAndUnresolvable", "didn't match PersistentVolume", "didn't find available", "did not have enough", "non-existent"} {
		if !slices.ContainsFunc(keys(count), func(k string) bool { return strings.Contains(k, kind) && count[k] >= 2 }) {
			t.Errorf("no answer of kind %q among %v", kind, count)
		}
	}
}
