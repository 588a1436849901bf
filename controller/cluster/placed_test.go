package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/volume"
)

// makePlaced is a pod that somebody put on node a, with the claims.
func makePlaced(claims ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web"},
		Spec:       corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return pod
}

func late(pvc *corev1.PersistentVolumeClaim) { *pvc.Spec.StorageClassName = "later" }

func byHand(pvc *corev1.PersistentVolumeClaim) { *pvc.Spec.StorageClassName = "byhand" }

// makeFree is a free volume that lies on a node.
func makeFree(name, node string, bytes int64) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "byhand", Capacity: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: volume.TopologyNodeKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
}

// placedWorld is a world with node a and the reconciler of placed pods.
type placedWorld struct {
	*world
	p *placed
}

func newPlacedWorld(t *testing.T, objects ...client.Object) placedWorld {
	t.Helper()
	node, csiNode := makeNode("a")
	made := makeClass("byhand", storagev1.VolumeBindingWaitForFirstConsumer)
	made.Provisioner = volume.NoProvisioner
	w := newWorld(t, append(objects, node, csiNode, made)...)
	return placedWorld{w, newPlaced(w.r)}
}

func (w placedWorld) look() (reconcile.Result, error) {
	return w.p.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}})
}

func (w placedWorld) mustLook() time.Duration {
	w.t.Helper()
	w.cache.sync(w.t)
	result, err := w.look()
	if err != nil {
		w.t.Fatal(err)
	}
	return result.RequeueAfter
}

// became is each claim's node or volume.
func (w placedWorld) became() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	var claims corev1.PersistentVolumeClaimList
	var volumes corev1.PersistentVolumeList
	for _, l := range []client.ObjectList{&claims, &volumes} {
		if err := w.api.List(context.Background(), l); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, c := range claims.Items {
		if node := c.Annotations[volume.AnnSelectedNode]; node != "" {
			out[c.Name] = "node " + node
		}
	}
	for _, v := range volumes.Items {
		if ref := v.Spec.ClaimRef; ref != nil && ref.UID != "" {
			out[ref.Name] += "volume " + v.Name
		}
	}
	return out
}

func TestPlaced(t *testing.T) {
	cases := map[string]struct {
		reason  string
		pod     func(*corev1.Pod)
		objects []client.Object
		want    map[string]string
		// told is part of the last event, empty for none.
		told string
	}{
		"provisioned": {
			reason: "nobody else selects the node", objects: []client.Object{makeClaim("data", gi, late)},
			want: map[string]string{"data": "node a"}, told: "claim data: node a is to provide the volume",
		},
		"any driver": {
			reason:  "no other program does it for any driver",
			objects: []client.Object{makeClaim("data", gi, late, func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil })},
			want:    map[string]string{"data": "node a"}, told: "is to provide",
		},
		"volume by hand": {
			reason:  "the smallest volume of the node that fits is bound",
			objects: []client.Object{makeClaim("data", gi, byHand), makeFree("large", "a", 4*gi), makeFree("fits", "a", 2*gi), makeFree("small", "a", 1), makeFree("far", "b", gi)},
			want:    map[string]string{"data": "volume fits"}, told: "volume fits of node a is bound to it",
		},
		"two by hand": {
			reason:  "no volume serves two claims",
			objects: []client.Object{makeClaim("data", gi, byHand), makeClaim("logs", 2*gi, byHand), makeFree("x", "a", 2*gi), makeFree("y", "a", 4*gi)},
			want:    map[string]string{"data": "volume x", "logs": "volume y"}, told: "is bound to it",
		},
		"no volume": {
			reason:  "the pod's user learns of it",
			objects: []client.Object{makeClaim("data", gi, byHand), makeFree("far", "b", gi)}, want: map[string]string{},
			told: "claim data cannot be bound there: no available volume of class byhand that fits can be reached from node a; a pod without spec.nodeName goes where its claims can be bound",
		},
		"outside": {
			reason:  "a class says where its volumes may be",
			objects: []client.Object{makeClaim("data", gi, func(c *corev1.PersistentVolumeClaim) { *c.Spec.StorageClassName = "elsewhere" })},
			want:    map[string]string{}, told: "node a lies outside the allowedTopologies of class elsewhere",
		},
		"no driver there": {
			reason:  "nobody would give the claim back",
			objects: []client.Object{makeClaim("data", gi, func(c *corev1.PersistentVolumeClaim) { *c.Spec.StorageClassName = "foreign" })},
			want:    map[string]string{}, told: "driver foreign.csi is not registered on node a",
		},
		"immediate":     {reason: "those are assigned to nodes with room", objects: []client.Object{makeClaim("data", gi)}, want: map[string]string{}},
		"selected":      {reason: "a scheduler has decided", objects: []client.Object{makeClaim("data", gi, late, selectedFor("b"))}, want: map[string]string{"data": "node b"}},
		"bound":         {reason: "nothing is left to do", objects: []client.Object{makeClaim("data", gi, late, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" })}, want: map[string]string{}},
		"no claim yet":  {reason: "its event brings the pod back", want: map[string]string{}},
		"not on a node": {reason: "the scheduler's pod", pod: func(p *corev1.Pod) { p.Spec.NodeName = "" }, objects: []client.Object{makeClaim("data", gi, late)}, want: map[string]string{}},
		"running":       {reason: "a pod that runs has its volumes", pod: func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, objects: []client.Object{makeClaim("data", gi, late)}, want: map[string]string{}},
		"no such node":  {reason: "the pod is garbage", pod: func(p *corev1.Pod) { p.Spec.NodeName = "gone" }, objects: []client.Object{makeClaim("data", gi, late)}, want: map[string]string{}},
		"ephemeral": {
			reason: "an ephemeral claim that the pod owns", pod: ephemeralVolume,
			objects: []client.Object{makeClaim("web-scratch", gi, late, func(c *corev1.PersistentVolumeClaim) {
				c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "uid-web", Controller: new(true)}}
			})},
			want: map[string]string{"web-scratch": "node a"}, told: "is to provide",
		},
		"ephemeral namesake": {
			reason: "a claim that is not the pod's", pod: ephemeralVolume,
			objects: []client.Object{makeClaim("web-scratch", gi, late)}, want: map[string]string{},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := makePlaced("data", "logs")
			if tc.pod != nil {
				tc.pod(pod)
			}
			elsewhere := makeClass("elsewhere", storagev1.VolumeBindingWaitForFirstConsumer)
			elsewhere.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: volume.TopologyNodeKey, Values: []string{"b"}}}}}
			foreign := makeClass("foreign", storagev1.VolumeBindingWaitForFirstConsumer)
			foreign.Provisioner = "foreign.csi"
			drivers := []client.Object{
				&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "foreign.csi"}},
				&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: volume.DriverName}},
			}
			w := newPlacedWorld(t, append(append(tc.objects, pod, elsewhere, foreign), drivers...)...)
			for range 2 {
				w.mustLook()
			}
			if diff := cmp.Diff(tc.want, w.became()); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.reason, diff)
			}
			last := ""
			if n := len(w.events.Told); n > 0 {
				last = w.events.Told[n-1]
			}
			if !strings.Contains(last, tc.told) || tc.told == "" && last != "" {
				t.Errorf("%s: told %q", tc.reason, w.events.Told)
			}
		})
	}
}

func ephemeralVolume(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
}

// TestPlacedGivenBack: the node is selected again, ever more rarely, and the
// pod's user is told once.
func TestPlacedGivenBack(t *testing.T) {
	w := newPlacedWorld(t, makeClaim("data", gi, late), makePlaced("data"))
	w.mustLook()
	var waits []time.Duration
	for range 8 {
		update(w.world, w.claim("data"), func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, volume.AnnSelectedNode) })
		wait := w.mustLook()
		if got := w.selected("data"); got != "" {
			t.Fatalf("selected %q at once after it was given back", got)
		}
		waits = append(waits, wait)
		w.clock.SetTime(w.clock.Now().Add(wait))
		w.mustLook()
		if got := w.selected("data"); got != "a" {
			t.Fatalf("selected %q after the pause, want a", got)
		}
	}
	s := time.Second
	if diff := cmp.Diff([]time.Duration{10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s, 300 * s}, waits); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	gaveBack := 0
	for _, e := range w.events.Told {
		if strings.Contains(e, "the provisioner gave node a back") {
			gaveBack++
		}
	}
	if gaveBack != 1 {
		t.Errorf("told %d times: %q", gaveBack, w.events.Told)
	}
	if err := w.api.Delete(context.Background(), makePlaced()); err != nil {
		t.Fatal(err)
	}
	w.mustLook()
	if len(w.p.courses) != 0 {
		t.Errorf("the courses of a pod that is gone are kept: %v", w.p.courses)
	}
}

// TestPlacedAgainstTheLag: a scheduler's pod is seen before its claim is seen
// bound; nothing is written then.
func TestPlacedAgainstTheLag(t *testing.T) {
	w := newPlacedWorld(t, makeClaim("data", gi, byHand), makeFree("pv", "a", gi), makePlaced("data"))
	stale := &staleClaims{WithWatch: w.cache.WithWatch, claim: w.claim("data")}
	w.p.client = stale
	update(w.world, w.claim("data"), func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "another" })
	w.mustLook()
	if diff := cmp.Diff(map[string]string{}, w.became()); diff != "" || len(w.events.Told) > 0 {
		t.Errorf("told %q, wrote (-want +got)\n%s", w.events.Told, diff)
	}
}

// TestPlacedReservesOnce: a volume that was reserved and is not seen so yet is not
// followed by another.
func TestPlacedReservesOnce(t *testing.T) {
	w := newPlacedWorld(t, makeClaim("data", gi, byHand), makeFree("x", "a", 2*gi), makePlaced("data"))
	w.mustLook()
	if err := w.api.Create(context.Background(), makeFree("smaller", "a", gi)); err != nil {
		t.Fatal(err)
	}
	lagging := w.cache.volumes
	w.cache.sync(t)
	lagging.Items = append(lagging.Items, *makeFree("smaller", "a", gi))
	w.cache.volumes = lagging
	if _, err := w.look(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"data": "volume x"}, w.became()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestPlacedTakesNoVolumeTwice: nor does another claim of the pod get it, that
// comes before the reservation is seen.
func TestPlacedTakesNoVolumeTwice(t *testing.T) {
	w := newPlacedWorld(t, makeClaim("data", gi, byHand), makeFree("x", "a", 2*gi), makePlaced("data", "logs"))
	w.mustLook()
	for _, o := range []client.Object{makeClaim("logs", gi, byHand), makeFree("y", "a", 4*gi)} {
		if err := w.api.Create(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	lagging := w.cache.volumes
	w.cache.sync(t)
	lagging.Items = append(lagging.Items, *makeFree("y", "a", 4*gi))
	w.cache.volumes = lagging
	if _, err := w.look(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{"data": "volume x", "logs": "volume y"}, w.became()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// staleClaims is a cache that has not seen a claim's last change.
type staleClaims struct {
	client.WithWatch
	claim *corev1.PersistentVolumeClaim
}

func (s *staleClaims) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if pvc, ok := o.(*corev1.PersistentVolumeClaim); ok {
		s.claim.DeepCopyInto(pvc)
		return nil
	}
	return s.WithWatch.Get(ctx, key, o, opts...)
}

// TestPlacedDisturbed: whichever call fails, is lost or is the last of a leader,
// the next looks finish the work, once.
func TestPlacedDisturbed(t *testing.T) {
	for _, mode := range csitest.Modes() {
		for at := 1; ; at++ {
			w := newPlacedWorld(t, makeClaim("data", gi, late), makeClaim("logs", gi, byHand), makeFree("x", "a", gi), makeFree("y", "a", gi), makePlaced("data", "logs"))
			w.steps.At, w.steps.Mode = at, mode
			for range 4 {
				w.cache.sync(t)
				if csitest.Survive(func() { _, _ = w.look() }) {
					w.start()
					w.p = newPlaced(w.r)
				}
			}
			got := w.became()
			if got["data"] != "node a" || got["logs"] != "volume x" && got["logs"] != "volume y" {
				t.Errorf("%s at %d, %v: %v", mode, at, w.steps.Trail(), got)
			}
			if !w.steps.Hit() {
				break
			}
		}
	}
}

// TestPlacedWoken: which events bring which pods.
func TestPlacedWoken(t *testing.T) {
	other := makePlaced("else")
	other.Name, other.UID = "other", "uid-other"
	w := newPlacedWorld(t, makePlaced("data"), other)
	names := func(requests []reconcile.Request) (out []string) {
		for _, r := range requests {
			out = append(out, r.Name)
		}
		return out
	}
	if diff := cmp.Diff([]string{"web"}, names(w.p.podsOf(context.Background(), makeClaim("data", gi)))); diff != "" {
		t.Errorf("a claim brings its pods (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"other", "web"}, names(w.p.pods(context.Background(), nil))); diff != "" {
		t.Errorf("a volume brings all (-want +got)\n%s", diff)
	}
	back := event.UpdateEvent{ObjectOld: makeClaim("data", gi, selectedFor("a")), ObjectNew: makeClaim("data", gi)}
	taken := event.UpdateEvent{ObjectOld: back.ObjectNew, ObjectNew: back.ObjectOld}
	if p := claimComesBack(); !p.Update(back) || p.Update(taken) || !p.Create(event.CreateEvent{}) || p.Delete(event.DeleteEvent{}) {
		t.Error("a claim passes when it is new and when it is given back")
	}
	classless := makeClaim("data", gi)
	classless.Spec.StorageClassName = nil
	if !claimComesBack().Update(event.UpdateEvent{ObjectOld: classless, ObjectNew: makeClaim("data", gi)}) {
		t.Error("a claim passes when it gets its class")
	}
	if !onChange(labelsChanged).Update(event.UpdateEvent{ObjectOld: &corev1.Node{}, ObjectNew: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{volume.LabelZone: "z"}}}}) {
		t.Error("a node passes when its labels change")
	}
	if diff := cmp.Diff([]string{"other", "web"}, names(w.p.podsOn(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))); diff != "" {
		t.Errorf("a node brings its pods (-want +got)\n%s", diff)
	}
	if got := names(w.p.podsOn(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}})); len(got) != 0 {
		t.Errorf("another node brings %v", got)
	}
	free, used, red := makeFree("pv", "a", gi), makeFree("pv", "a", gi), makeFree("pv", "a", gi)
	used.Status.Phase = corev1.VolumeBound
	red.Labels = map[string]string{"color": "red"}
	if !volumeBecomesFree().Update(event.UpdateEvent{ObjectOld: free, ObjectNew: red}) {
		t.Error("a free volume passes when a selector may match it")
	}
	if p := volumeBecomesFree(); !p.Update(event.UpdateEvent{ObjectOld: used, ObjectNew: free}) ||
		p.Update(event.UpdateEvent{ObjectOld: free, ObjectNew: free}) || p.Create(event.CreateEvent{Object: used}) || !p.Create(event.CreateEvent{Object: free}) {
		t.Error("a volume passes when it becomes available")
	}
}

// TestPodsPlaced: the watch has only pods that are on a node and have not begun.
func TestPodsPlaced(t *testing.T) {
	slim, err := slimPod(makePlaced("data"))
	if err != nil || !waitsPlaced(slim.(*corev1.Pod)) || len(claimNames(slim.(*corev1.Pod))) != 1 {
		t.Errorf("slimmed to %v, %v", slim, err)
	}
	if _, err := slimPod(errors.New("no pod")); err != nil {
		t.Error(err)
	}
	if got, want := podsPlaced().String(), "spec.nodeName!=,status.phase=Pending"; got != want {
		t.Errorf("selector %q, want %q", got, want)
	}
}
