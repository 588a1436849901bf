package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
)

// bind and sel are steps of a case's plan.
func (k caseName) bind(claim, pv string) binding.Bind {
	return binding.Bind{Claim: "default/" + string(k) + claim, ClaimUID: "uid-" + string(k) + claim, Volume: string(k) + pv, VolumeUID: "uid-" + string(k) + pv}
}

func (k caseName) sel(claim string) binding.Select {
	return binding.Select{Claim: "default/" + string(k) + claim, ClaimUID: "uid-" + string(k) + claim}
}

// onNode is what a plan for another node than n1 awaits.
func onNode(node string) func(*binding.BindPlan) {
	return func(p *binding.BindPlan) { p.Node = node }
}

type awaitCase struct {
	reason  string
	objects func(k caseName) []runtime.Object
	binds   []string // "claim volume"
	selects []string
	change  func(*binding.BindPlan)
	written binder.Written
	noPod   bool
	// want is what is awaited, wantErr why waiting is of no use; neither: done.
	want, wantErr string
}

func (tc *awaitCase) plan(k caseName) binding.BindPlan {
	plan := k.planOf(tc.binds, tc.selects)
	if tc.change != nil {
		tc.change(&plan)
	}
	return plan
}

// TestAwaited: what a written plan waits for, by the state of the API (upstream:
// TestCheckBindings and TestCheckBindingsWithCSIMigration).
func TestAwaited(t *testing.T) {
	const controller = "waiting for the PV controller to bind it to volume "
	// reserved are a claim and the volume that is reserved for it.
	reserved := func(k caseName, claim, pv, node string) []runtime.Object {
		pvc := k.pvc(claim, "local", "1Gi")
		return []runtime.Object{pvc, takenBy(k.pv(pv, "local", "1Gi", node), pvc)}
	}
	boundHere := func(k caseName) []runtime.Object { return k.bound("a", "local", "n1") }
	made := func(k caseName, node string) []runtime.Object {
		objects := k.bound("a", "local", node)
		selectedFor(objects[0].(*corev1.PersistentVolumeClaim), "n1")
		return objects
	}
	pending := func(k caseName) []runtime.Object {
		return []runtime.Object{selectedFor(k.pvc("a", "local", "1Gi"), "n1")}
	}
	edit := func(objects []runtime.Object, change func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)) []runtime.Object {
		pvc, _ := objects[0].(*corev1.PersistentVolumeClaim)
		var pv *corev1.PersistentVolume
		if len(objects) > 1 {
			pv = objects[1].(*corev1.PersistentVolume)
		}
		change(pvc, pv)
		return objects
	}
	migrated := func(zone, selected string) func(caseName) []runtime.Object {
		return func(k caseName) []runtime.Object {
			objects := k.migrated("a", zone)
			if selected != "" {
				selectedFor(objects[0].(*corev1.PersistentVolumeClaim), selected)
			}
			return objects
		}
	}
	bindA, selA := []string{"a pv-a"}, []string{"a"}
	cases := map[string]awaitCase{
		"nothing":          {reason: "there is nothing to wait for"},
		"no binds":         {reason: "an empty list is none", change: func(p *binding.BindPlan) { p.Binds = []binding.Bind{} }},
		"no selects":       {reason: "an empty list is none", change: func(p *binding.BindPlan) { p.Selects = []binding.Select{} }},
		"two empty lists":  {reason: "an empty list is none", change: func(p *binding.BindPlan) { p.Binds, p.Selects = []binding.Bind{}, []binding.Select{} }},
		"nothing, no pod":  {reason: "nobody waits", noPod: true, wantErr: "does not exist any more"},
		"nothing, no node": {reason: "there is no place", change: onNode("n9"), wantErr: "node n9 does not exist any more"},
		"bound":            {reason: "both name each other", binds: bindA, objects: boundHere},
		"half bound": {reason: "the claim's part is not completed", binds: bindA, want: controller + "pv-a", objects: func(k caseName) []runtime.Object {
			return edit(boundHere(k), func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.Annotations = nil })
		}},
		"unbound":       {reason: "the volume is reserved, the claim knows nothing", binds: bindA, want: controller + "pv-a", objects: func(k caseName) []runtime.Object { return reserved(k, "a", "pv-a", "n1") }},
		"claim missing": {reason: "whose is the volume?", binds: bindA, wantErr: "claim default/a does not exist any more", objects: func(k caseName) []runtime.Object { return boundHere(k)[1:] }},
		"claim deleting": {reason: "it will never be bound", binds: bindA, wantErr: "claim default/a is being deleted", objects: func(k caseName) []runtime.Object {
			return edit(reserved(k, "a", "pv-a", "n1"), func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
				c.DeletionTimestamp, c.Finalizers = new(metav1.Now()), []string{"f"}
			})
		}},
		"claim replaced": {reason: "a namesake is another claim", binds: bindA, wantErr: "claim default/a does not exist any more", objects: func(k caseName) []runtime.Object {
			return edit(boundHere(k), func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.UID = "another" })
		}},
		"volume missing": {reason: "there is nothing to bind", binds: bindA, wantErr: "volume pv-a does not exist any more", objects: func(k caseName) []runtime.Object { return boundHere(k)[:1] }},
		"no claimRef": {reason: "the PV controller gave it back", binds: bindA, wantErr: "volume pv-a lost its reservation", objects: func(k caseName) []runtime.Object {
			return edit(boundHere(k), func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil })
		}},
		"no UID": {reason: "only a name is left of it", binds: bindA, wantErr: "volume pv-a lost its reservation", objects: func(k caseName) []runtime.Object {
			return edit(boundHere(k), func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" })
		}},
		"volume taken": {reason: "another claim was faster", binds: bindA, wantErr: "volume pv-a was taken by claim default/a", objects: func(k caseName) []runtime.Object {
			return edit(boundHere(k), func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "another" })
		}},
		"bound to another": {reason: "the PV controller chose otherwise", binds: bindA, wantErr: "was bound to volume other instead of pv-a", objects: func(k caseName) []runtime.Object {
			return edit(boundHere(k), func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
				c.Spec.VolumeName = string(k) + "other"
			})
		}},
		"not seen yet":     {reason: "the watch is behind the write", binds: bindA, written: binder.Written{Volumes: map[string]string{"pv-a": "100000"}}, want: "waiting to see its reservation", objects: boundHere},
		"out of reach":     {reason: "the node lost its label", binds: bindA, wantErr: "volume pv-a can no longer be reached from node n1", objects: func(k caseName) []runtime.Object { return k.bound("a", "local", "n2") }},
		"one of two bound": {reason: "both are needed", binds: []string{"a pv-a", "b pv-b"}, want: "claim default/b: " + controller + "pv-b", objects: func(k caseName) []runtime.Object { return append(boundHere(k), reserved(k, "b", "pv-b", "n1")...) }},
		"one waits, one lost": {reason: "a failure is not hidden by a wait", binds: []string{"a pv-a", "b pv-b"}, wantErr: "volume pv-b does not exist any more", objects: func(k caseName) []runtime.Object {
			return append(reserved(k, "a", "pv-a", "n1"), reserved(k, "b", "pv-b", "n1")[0])
		}},
		"made":            {reason: "the claim is bound to its new volume", selects: selA, objects: func(k caseName) []runtime.Object { return made(k, "n1") }},
		"not made":        {reason: "the provisioner is at work", selects: selA, want: "waiting for its volume to be provisioned on node n1", objects: pending},
		"made for nobody": {reason: "the claim is gone", selects: selA, wantErr: "claim default/a does not exist any more"},
		"no annotations":  {reason: "the provisioner gave the node back", selects: selA, wantErr: "gave node n1 back", objects: func(k caseName) []runtime.Object { return []runtime.Object{k.pvc("a", "local", "1Gi")} }},
		"given back": {reason: "other annotations stay", selects: selA, wantErr: "gave node n1 back", objects: func(k caseName) []runtime.Object {
			return edit(pending(k), func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
				c.Annotations = map[string]string{"a": "b"}
			})
		}},
		"selected elsewhere": {reason: "somebody else decided", selects: selA, wantErr: "another node, n2, was selected", objects: func(k caseName) []runtime.Object {
			return []runtime.Object{selectedFor(k.pvc("a", "local", "1Gi"), "n2")}
		}},
		"bound, one to make": {reason: "both are needed", binds: bindA, selects: []string{"b"}, want: "claim default/b: waiting for its volume to be provisioned", objects: func(k caseName) []runtime.Object {
			return append(boundHere(k), selectedFor(k.pvc("b", "local", "1Gi"), "n1"))
		}},
		"made, volume unseen": {reason: "the claim's event was faster than the volume's", selects: selA, want: "waiting to see volume pv-a", objects: func(k caseName) []runtime.Object { return made(k, "n1")[:1] }},
		"made elsewhere":      {reason: "the pod cannot use it", selects: selA, wantErr: "volume pv-a cannot be reached from node n1", objects: func(k caseName) []runtime.Object { return made(k, "n2") }},
		"made, half bound": {reason: "the PV controller has the rest to do", selects: selA, want: controller + "pv-a", objects: func(k caseName) []runtime.Object {
			return edit(pending(k), func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
				c.Spec.VolumeName = string(k) + "pv-a"
			})[:1:1]
		}},
		"selection not seen": {reason: "the watch is behind the write", selects: selA, written: binder.Written{Claims: map[string]string{"default/a": "100000"}}, want: "waiting to see its selected node", objects: func(k caseName) []runtime.Object {
			return []runtime.Object{k.pvc("a", "local", "1Gi")}
		}},

		"plugin, made here":                  {reason: "in the driver's zone", selects: selA, objects: migrated("z2", "n1")},
		"plugin, made elsewhere":             {reason: "not in the driver's zone", selects: selA, wantErr: "cannot be reached from node n1", objects: migrated("z1", "n1")},
		"plugin, bound here":                 {reason: "in the driver's zone", binds: bindA, objects: migrated("z2", "")},
		"plugin, zones differ":               {reason: "not in the driver's zone", binds: bindA, wantErr: "can no longer be reached from node n1", objects: migrated("z1", "")},
		"plugin, no CSINode":                 {reason: "the volume's own zone", binds: bindA, change: onNode("n3"), objects: migrated("z1", "")},
		"plugin, not migrated":               {reason: "the volume's own zone", binds: bindA, change: onNode("n2"), objects: migrated("z1", "")},
		"plugin, not migrated, zones differ": {reason: "the volume's own zone is another", binds: bindA, change: onNode("n2"), wantErr: "can no longer be reached from node n2", objects: migrated("z2", "")},
	}
	var objects []runtime.Object
	for title, tc := range cases {
		k := nameOf(title)
		if tc.objects != nil {
			objects = append(objects, tc.objects(k)...)
		}
		if title == "made, half bound" {
			objects = append(objects, k.pv("pv-a", "local", "1Gi", "n1"))
		}
		if !tc.noPod {
			objects = append(objects, k.pod())
		}
	}
	r := caseRig(t, objects...)
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			k := nameOf(title)
			written := binder.Written{Volumes: map[string]string{}, Claims: map[string]string{}}
			for name, version := range tc.written.Volumes {
				written.Volumes[string(k)+name] = version
			}
			for key, version := range tc.written.Claims {
				written.Claims[strings.Replace(key, "default/", "default/"+string(k), 1)] = version
			}
			got, err := r.plugin.binder.Awaits(k.pod(), tc.plan(k), written)
			said := ""
			if err != nil {
				said = k.plain(err.Error())
			}
			if (err != nil) != (tc.wantErr != "") || !strings.Contains(said, tc.wantErr) {
				t.Fatalf("%s: got error %q, want %q", tc.reason, said, tc.wantErr)
			}
			if text := k.plain(got.Text); (text == "") != (tc.want == "") || !strings.Contains(text, tc.want) {
				t.Errorf("%s: waits for %q, want %q", tc.reason, text, tc.want)
			}
		})
	}
}
