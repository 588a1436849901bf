package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// planOf makes a plan for n1 of binds ("claim volume") and selects.
func (k caseName) planOf(binds, selects []string) binding.BindPlan {
	plan := binding.BindPlan{Node: "n1"}
	for _, b := range binds {
		claim, pv, _ := strings.Cut(b, " ")
		plan.Binds = append(plan.Binds, k.bind(claim, pv))
	}
	for _, s := range selects {
		plan.Selects = append(plan.Selects, k.sel(s))
	}
	return plan
}

// written is what the API server has of the case: volumes with the claims that
// they are reserved for, and claims with their selected nodes.
func (k caseName) written(t *testing.T, c *cluster) map[string]string {
	t.Helper()
	out := map[string]string{}
	volumes, err := c.Client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pv := range volumes.Items {
		if name, mine := strings.CutPrefix(pv.Name, string(k)); mine && pv.Spec.ClaimRef != nil {
			out[name] = k.plain(pv.Spec.ClaimRef.Name)
		}
	}
	claims, err := c.Client.CoreV1().PersistentVolumeClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pvc := range claims.Items {
		if name, mine := strings.CutPrefix(pvc.Name, string(k)); mine && pvc.Annotations[volume.AnnSelectedNode] != "" {
			out[name] = pvc.Annotations[volume.AnnSelectedNode]
		}
	}
	return out
}

// behind makes the API server newer than the informers: change is written when the
// first patch of the object comes, before it is judged.
func (c *cluster) behind(name string, change func()) {
	done := false
	c.BeforePatch(func(_, patched string) error {
		if patched == name && !done {
			done = true
			change()
		}
		return nil
	})
}

// must is for what a test itself writes.
func (c *cluster) must(err error) {
	if err != nil {
		panic(err)
	}
}

// TestWrites: what of a plan reaches the API server, in which states of it
// (upstream: TestBindAPIUpdate).
func TestWrites(t *testing.T) {
	// pair are a claim and a volume that it can have.
	pair := func(k caseName, claim, pv string) []runtime.Object {
		return []runtime.Object{k.pvc(claim, "local", "1Gi"), k.pv(pv, "local", "1Gi", "n1")}
	}
	reserved := func(k caseName, claim, pv string) []runtime.Object {
		objects := pair(k, claim, pv)
		objects[1].(*corev1.PersistentVolume).Spec.ClaimRef = reservedClaimRef(objects[0].(*corev1.PersistentVolumeClaim))
		return objects
	}
	two := func(k caseName) []runtime.Object { return append(pair(k, "a", "pv1"), pair(k, "b", "pv2")...) }
	dyn := func(k caseName) []runtime.Object {
		return []runtime.Object{k.pvc("a", "dyn", "1Gi"), k.pvc("b", "dyn", "1Gi")}
	}
	stolen := func(pv string) func(*rig, caseName) {
		return func(r *rig, k caseName) {
			r.behind(string(k)+pv, func() {
				v := r.Volume(string(k) + pv)
				v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: string(k) + "thief", UID: "thief"}
				r.must(r.Write(v))
			})
		}
	}
	elsewhere := func(claim string) func(*rig, caseName) {
		return func(r *rig, k caseName) {
			r.behind(string(k)+claim, func() { r.must(r.Write(selectedFor(r.Claim(string(k)+claim), "n2"))) })
		}
	}
	cases := map[string]struct {
		reason         string
		objects        func(caseName) []runtime.Object
		binds, selects []string
		before         func(*rig, caseName)
		want           map[string]string
		wantErr        string
	}{
		"nothing":          {reason: "an empty plan is done (upstream fails where a list is nil)"},
		"no binds":         {reason: "an empty list is none", binds: []string{}},
		"no selects":       {reason: "an empty list is none", selects: []string{}},
		"two empty lists":  {reason: "an empty list is none", binds: []string{}, selects: []string{}},
		"one volume":       {reason: "it is reserved", binds: []string{"a pv1"}, objects: func(k caseName) []runtime.Object { return pair(k, "a", "pv1") }, want: map[string]string{"pv1": "a"}},
		"two volumes":      {reason: "each for its claim", binds: []string{"a pv1", "b pv2"}, objects: two, want: map[string]string{"pv1": "a", "pv2": "b"}},
		"reserved already": {reason: "by an earlier attempt", binds: []string{"a pv1"}, objects: func(k caseName) []runtime.Object { return reserved(k, "a", "pv1") }, want: map[string]string{"pv1": "a"}},
		"one of two volumes taken": {
			reason: "the other stands, for undo to judge", binds: []string{"a pv1", "b pv2"}, objects: two, before: stolen("pv2"),
			want: map[string]string{"pv1": "a", "pv2": "thief"}, wantErr: "volume pv2 was taken by claim default/thief",
		},
		"one claim": {reason: "its node is selected", selects: []string{"a"}, objects: dyn, want: map[string]string{"a": "n1"}},
		"one of two claims selected elsewhere": {
			reason: "the other stands: a provisioner may be at work", selects: []string{"a", "b"}, objects: dyn, before: elsewhere("b"),
			want: map[string]string{"a": "n1", "b": "n2"}, wantErr: "claim default/b: another node, n2, was selected",
		},
		"volume written, claim selected elsewhere": {
			reason: "each write stands for itself", binds: []string{"c pv1"}, selects: []string{"a", "b"}, before: elsewhere("b"),
			objects: func(k caseName) []runtime.Object { return append(dyn(k), pair(k, "c", "pv1")...) },
			want:    map[string]string{"pv1": "c", "a": "n1", "b": "n2"}, wantErr: "claim default/b: another node, n2, was selected",
		},

		// What the informers know already stops a plan before its first write.
		"known to be taken": {
			reason: "nothing is written that would have to be undone", binds: []string{"a pv1", "b pv2"}, wantErr: "volume pv2 was taken by claim default/a",
			objects: func(k caseName) []runtime.Object {
				objects := two(k)
				objects[3].(*corev1.PersistentVolume).Spec.ClaimRef = reservedClaimRef(objects[0].(*corev1.PersistentVolumeClaim))
				return objects
			}, want: map[string]string{"pv2": "a"},
		},
		"known to be selected elsewhere": {
			reason: "nothing is written that would have to be undone", binds: []string{"c pv1"}, selects: []string{"a"}, wantErr: "claim default/a: another node, n2, was selected",
			objects: func(k caseName) []runtime.Object {
				return append(pair(k, "c", "pv1"), selectedFor(k.pvc("a", "dyn", "1Gi"), "n2"))
			}, want: map[string]string{"a": "n2"},
		},
		"claim known to be gone": {
			reason: "nothing is written that would have to be undone", binds: []string{"a pv1"}, selects: []string{"b"}, wantErr: "claim default/b does not exist any more",
			objects: func(k caseName) []runtime.Object { return pair(k, "a", "pv1") },
		},
	}
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
			if tc.before != nil {
				tc.before(r, k)
			}
			attempt := r.plugin.binder.Begin(k.pod(), k.planOf(tc.binds, tc.selects))
			defer attempt.End()
			err := attempt.Write(t.Context())
			if said := k.plain(errText(err)); (err != nil) != (tc.wantErr != "") || !strings.Contains(said, tc.wantErr) {
				t.Errorf("%s: got error %q, want %q", tc.reason, said, tc.wantErr)
			}
			if tc.want == nil {
				tc.want = map[string]string{}
			}
			if diff := cmp.Diff(tc.want, k.written(t, r.cluster)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestBind: a plan from its first write to its end (upstream: TestBindPodVolumes).
func TestBind(t *testing.T) {
	pair := func(k caseName) []runtime.Object {
		return []runtime.Object{k.pvc("a", "local", "1Gi"), k.pv("pv", "local", "1Gi", "n1")}
	}
	pending := func(k caseName) []runtime.Object {
		return []runtime.Object{k.pvc("a", "dyn", "1Gi"), k.pv("pv", "dyn", "1Gi", "n1"), k.pv("far", "dyn", "1Gi", "n2")}
	}
	// complete is the PV controller, or the provisioner and the PV controller.
	complete := func(pv string) func(*rig, caseName) {
		return func(r *rig, k caseName) {
			pvc := r.Claim(string(k) + "a")
			r.Put(takenBy(r.Volume(string(k)+pv), pvc))
			r.Put(fakeapi.BoundTo(pvc, string(k)+pv))
		}
	}
	bindA, selA := []string{"a pv"}, []string{"a"}
	cases := map[string]struct {
		reason         string
		objects        func(caseName) []runtime.Object
		binds, selects []string
		// early runs before the first patch, inside the API server; then when all
		// writes have arrived; cancelled ends the wait then.
		early, then func(*rig, caseName)
		cancelled   bool
		wantErr     string
	}{
		"nothing":                    {reason: "an empty plan is done"},
		"already bound":              {reason: "nothing is left to do", binds: []string{"a pv-a"}, objects: func(k caseName) []runtime.Object { return k.bound("a", "local", "n1") }},
		"volume, bound after a time": {reason: "the PV controller completes it", binds: bindA, objects: pair, then: complete("pv")},
		"made after a time":          {reason: "the provisioner makes it, the PV controller binds it", selects: selA, objects: pending, then: complete("pv")},
		"bound by the PV controller first": {
			reason: "what was wanted is so (upstream: a conflict sends the pod back)", binds: bindA, objects: pair,
			early: func(r *rig, k caseName) {
				pvc := r.Claim(string(k) + "a")
				r.must(r.Write(takenBy(r.Volume(string(k)+"pv"), pvc)))
				r.must(r.Write(fakeapi.BoundTo(pvc, string(k)+"pv")))
			},
		},
		"pod deleted": {reason: "nobody waits", binds: bindA, objects: pair, wantErr: "pod default/pod does not exist any more", then: func(r *rig, k caseName) { r.Delete(k.pod()) }},
		"time is up":  {reason: "what is awaited is said", binds: bindA, objects: pair, cancelled: true, wantErr: "waiting for the PV controller to bind it to volume pv"},
		"write fails": {reason: "the server does not take it", binds: bindA, objects: pair, wantErr: "volume pv was taken by claim default/thief", early: func(r *rig, k caseName) {
			v := r.Volume(string(k) + "pv")
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: string(k) + "thief", UID: "thief"}
			r.must(r.Write(v))
		}},
		"claim deleted": {reason: "there is nothing to bind", binds: bindA, objects: pair, wantErr: "claim default/a does not exist any more", then: func(r *rig, k caseName) { r.Delete(r.Claim(string(k) + "a")) }},
		"node out of reach": {
			reason: "the volume is elsewhere now", binds: bindA, wantErr: "volume pv can no longer be reached from node n1",
			objects: func(k caseName) []runtime.Object {
				objects := pair(k)
				objects[1] = k.pv("pv", "local", "1Gi", "n2")
				return objects
			},
		},
		"made elsewhere": {reason: "the pod cannot use it", selects: selA, objects: pending, then: complete("far"), wantErr: "volume far cannot be reached from node n1"},
		"given back": {reason: "the provisioner has no room", selects: selA, objects: pending, wantErr: "the provisioner gave node n1 back", then: func(r *rig, k caseName) {
			pvc := r.Claim(string(k) + "a")
			delete(pvc.Annotations, volume.AnnSelectedNode)
			r.Put(pvc)
		}},
	}
	var objects []runtime.Object
	for title, tc := range cases {
		k := nameOf(title)
		objects = append(objects, k.pod())
		if tc.objects != nil {
			objects = append(objects, tc.objects(k)...)
		}
	}
	r := caseRig(t, objects...)
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			k := nameOf(title)
			if tc.early != nil {
				r.behind(string(k)+"pv", func() { tc.early(r, k) })
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			result := make(chan error, 1)
			go func() { result <- r.plugin.binder.Bind(ctx, k.pod(), k.planOf(tc.binds, tc.selects)) }()
			if tc.then != nil || tc.cancelled {
				r.seen(func() bool { return k.arrived(r, tc.binds, tc.selects) })
			}
			if tc.then != nil {
				tc.then(r, k)
			}
			if tc.cancelled {
				cancel(errors.New("preempted"))
			}
			err := <-result
			if said := k.plain(errText(err)); (err != nil) != (tc.wantErr != "") || !strings.Contains(said, tc.wantErr) {
				t.Errorf("%s: got error %q, want %q", tc.reason, said, tc.wantErr)
			}
		})
	}
}

// arrived reports whether the informers have all that the plan writes.
func (k caseName) arrived(r *rig, binds, selects []string) bool {
	plan := k.planOf(binds, selects)
	for _, b := range plan.Binds {
		if pv := r.plugin.cache.Volume(b.Volume); pv == nil || pv.Spec.ClaimRef == nil {
			return false
		}
	}
	for _, s := range plan.Selects {
		if r.plugin.cache.ClaimByKey(s.Claim).Annotations[volume.AnnSelectedNode] != plan.Node {
			return false
		}
	}
	return true
}
