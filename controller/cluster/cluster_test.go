package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/volume"
)

// TestAssign: which claims get a node, and which do not.
func TestAssign(t *testing.T) {
	cases := map[string]struct {
		reason     string
		change     func(*corev1.PersistentVolumeClaim)
		others     []client.Object
		want       string
		wantEvents []string
	}{
		"waits": {
			reason: "an immediate claim of the driver gets a node", want: "a",
			wantEvents: []string{"Normal NodeAssigned node a is to provide the volume"},
		},
		"another driver": {
			reason: "other drivers have their own provisioners",
			change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnStorageProvisioner] = "other" },
		},
		"class binds late": {
			reason: "the scheduler chooses for classes that wait for a pod",
			change: func(c *corev1.PersistentVolumeClaim) { *c.Spec.StorageClassName = "later" },
		},
		"no class": {
			reason: "without its class a claim waits for it",
			change: func(c *corev1.PersistentVolumeClaim) { *c.Spec.StorageClassName = "none" },
		},
		"bound": {
			reason: "a bound claim has its volume",
			change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" },
		},
		"made": {reason: "the volume exists and is about to be bound", others: []client.Object{makeVolume(makeClaim("data", gi), "a", 1)}},
		"deleting": {
			reason: "nothing is made for a claim that goes",
			change: func(c *corev1.PersistentVolumeClaim) {
				c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"x/y"}
			},
		},
		"selector": {reason: "what provisioning refuses holds no space", change: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{}
		}, wantEvents: []string{"Warning ProvisioningFailed spec.selector asks for an existing volume; remove it to have one provisioned"}},
		"too large": {reason: "a claim larger than any pool is told why", change: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests = makeClaim("", 20*gi).Spec.Resources.Requests
		}, wantEvents: []string{"Warning ProvisioningFailed no node has a place for 20 GiB of class now:\n" +
			"1 node(s) did not have enough free storage: 20 GiB asked, 10 GiB is the most that any has"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pvc := makeClaim("data", gi)
			if tc.change != nil {
				tc.change(pvc)
			}
			w := newWorld(t, append(append(nodesWith(map[string]int64{"a": 10 * gi}), pvc), tc.others...)...)
			w.mustRound()
			w.cache.sync(t)
			w.mustRound()
			if got := w.selected("data"); got != tc.want {
				t.Errorf("%s: selected %q, want %q", tc.reason, got, tc.want)
			}
			if diff := cmp.Diff(tc.wantEvents, w.events.Told); diff != "" {
				t.Errorf("%s: events (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestRelease: a selection is taken back on positive evidence only.
func TestRelease(t *testing.T) {
	here, _ := makeNode("gone")
	notReady := here.DeepCopy()
	notReady.Status.Conditions[0].Status = corev1.ConditionUnknown
	cases := map[string]struct {
		reason string
		change func(*corev1.PersistentVolumeClaim)
		// cached objects are known to the controller, live ones only to the API server.
		cached, live []client.Object
		want         string
	}{
		"gone":      {reason: "nobody is there to make the volume"},
		"late":      {reason: "the scheduler's claims are released too", change: func(c *corev1.PersistentVolumeClaim) { *c.Spec.StorageClassName = "later" }},
		"not ready": {reason: "a node that is down comes back", cached: []client.Object{notReady}, want: "gone"},
		"new node":  {reason: "a cache that lags is no evidence", live: []client.Object{here}, want: "gone"},
		"made":      {reason: "with a volume the claim belongs to the node", cached: []client.Object{makeVolume(makeClaim("data", gi), "gone", 1)}, want: "gone"},
		"just made": {reason: "a volume that the cache does not know counts", live: []client.Object{makeVolume(makeClaim("data", gi), "gone", 1)}, want: "gone"},
		"bound":     {reason: "a bound claim needs no node", change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" }, want: "gone"},
		"another driver": {
			reason: "others' claims are theirs",
			change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnStorageProvisioner] = "other" }, want: "gone",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pvc := makeClaim("data", gi, selectedFor("gone"))
			if tc.change != nil {
				tc.change(pvc)
			}
			var objects []client.Object
			for _, o := range tc.cached {
				objects = append(objects, o.DeepCopyObject().(client.Object))
			}
			w := newWorld(t, append(objects, pvc)...)
			for _, o := range tc.live {
				if err := w.api.Create(context.Background(), o.DeepCopyObject().(client.Object)); err != nil {
					t.Fatal(err)
				}
			}
			w.mustRound()
			if got := w.selected("data"); got != tc.want {
				t.Errorf("%s: selected %q, want %q", tc.reason, got, tc.want)
			}
			if told := len(w.events.Told) > 0; told != (tc.want == "") {
				t.Errorf("%s: told %q", tc.reason, w.events.Told)
			}
		})
	}
}

// TestReleasedIsPlacedAnew: the two halves together.
func TestReleasedIsPlacedAnew(t *testing.T) {
	w := newWorld(t, append(nodesWith(map[string]int64{"a": 10 * gi}), makeClaim("data", gi, selectedFor("gone")))...)
	w.mustRound()
	w.cache.sync(t)
	w.mustRound()
	if got := w.selected("data"); got != "a" {
		t.Errorf("selected %q, want a", got)
	}
}

// TestReleaseOfAnOldClaim: the claim that the cache shows was placed elsewhere
// meanwhile; the newer selection stays.
func TestReleaseOfAnOldClaim(t *testing.T) {
	w := newWorld(t, makeClaim("data", gi, selectedFor("gone")))
	update(w, w.claim("data"), selectedFor("b"))
	w.mustRound()
	if got := w.selected("data"); got != "b" {
		t.Errorf("selected %q, want b", got)
	}
}

// TestConflict: a claim that changed since it was read is decided anew.
func TestConflict(t *testing.T) {
	w := newWorld(t, append(nodesWith(map[string]int64{"a": 10 * gi, "b": 9 * gi}), makeClaim("data", gi))...)
	update(w, w.claim("data"), selectedFor("b"))
	w.mustRound()
	if got := w.selected("data"); got != "b" {
		t.Errorf("another's selection was overwritten: %q", got)
	}
	w = newWorld(t, append(nodesWith(map[string]int64{"a": 10 * gi}), makeClaim("data", gi))...)
	update(w, w.claim("data"), func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"x": "y"} })
	if err := w.round(); err == nil {
		t.Error("a write that met a newer claim is not repeated by itself")
	}
	w.cache.sync(t)
	w.mustRound()
	if got := w.selected("data"); got != "a" {
		t.Errorf("selected %q after the conflict, want a: that node was never asked", got)
	}
}

// TestDisturbed disturbs every request once, ends the process or not, and wants
// the claims placed within their pools in the end.
func TestDisturbed(t *testing.T) {
	for _, mode := range csitest.Modes() {
		for at := 1; ; at++ {
			w := newWorld(t, append(nodesWith(map[string]int64{"a": 3 * gi, "b": 3 * gi}),
				makeClaim("c-0", 2*gi), makeClaim("c-1", 2*gi), makeClaim("c-2", 2*gi, selectedFor("gone")))...)
			w.steps.At, w.steps.Mode = at, mode
			for range 6 {
				// Two rounds on one state of the cache: a write may be in it late. An
				// error is repeated by the queue, as here.
				for range 2 {
					if csitest.Survive(func() { _ = w.round() }) {
						w.cache.sync(t)
						w.start()
					}
				}
				w.cache.sync(t)
			}
			on := map[string]int{}
			for _, name := range []string{"c-0", "c-1", "c-2"} {
				on[w.selected(name)]++
			}
			if diff := cmp.Diff(map[string]int{"a": 1, "b": 1, "": 1}, on); diff != "" {
				t.Errorf("%s at %d, %v:\n%s", mode, at, w.steps.Trail(), diff)
			}
			if !w.steps.Hit() {
				break
			}
		}
	}
}

// TestGivenBack: a node that could not serve the claim is left alone until its
// capacity changes; then it is asked again.
func TestGivenBack(t *testing.T) {
	w := newWorld(t, append(nodesWith(map[string]int64{"a": 10 * gi, "b": 5 * gi}), makeClaim("data", gi))...)
	giveBack := func() {
		w.cache.sync(t)
		update(w, w.claim("data"), func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, volume.AnnSelectedNode) })
		w.cache.sync(t)
		w.mustRound()
	}
	w.mustRound()
	giveBack()
	if got := w.selected("data"); got != "b" {
		t.Fatalf("selected %q after a gave it back, want b", got)
	}
	giveBack()
	if got := w.selected("data"); got != "" {
		t.Fatalf("selected %q after both gave it back", got)
	}
	if last := w.events.Told[len(w.events.Told)-1]; !strings.Contains(last, "2 node(s) gave the claim back") {
		t.Errorf("told %q", last)
	}
	update(w, makeCapacity("a", 10*gi, 0), func(c *storageCapacity) { c.Annotations[volume.AnnotationAllocation] = "1" })
	w.cache.sync(t)
	w.mustRound()
	if got := w.selected("data"); got != "a" {
		t.Errorf("selected %q after the capacity of a changed", got)
	}
}

// TestToldOnce: the same causes are told once until the event is about to expire.
func TestToldOnce(t *testing.T) {
	w := newWorld(t, append(nodesWith(map[string]int64{"a": 2 * gi}), makeClaim("data", 5*gi))...)
	w.mustRound()
	update(w, makeCapacity("a", gi, 0), func(c *storageCapacity) { *c.Capacity = *makeCapacity("a", 3*gi, 1).Capacity })
	w.cache.sync(t)
	w.mustRound()
	if len(w.events.Told) != 1 {
		t.Errorf("told %q", w.events.Told)
	}
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.mustRound()
	if len(w.events.Told) != 2 {
		t.Errorf("told %q an hour later", w.events.Told)
	}
}

// TestUncertain: a write whose outcome is not known keeps its node, so that
// nothing else is promised the space that it may have taken.
func TestUncertain(t *testing.T) {
	w := newWorld(t, append(nodesWith(map[string]int64{"a": 3 * gi, "b": 2 * gi}), makeClaim("x", 2*gi), makeClaim("z", 3*gi))...)
	lost := apierrors.NewTimeoutError("the answer is lost", 0)
	api := interceptor.NewClient(w.api, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return errors.Join(c.Patch(ctx, o, p, opts...), lost)
		},
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return lost
		},
	})
	undisturbed := w.cache.WithWatch
	w.cache.WithWatch, w.r.live = api, api
	if err := w.round(); err == nil || w.selected("x") != "a" || w.selected("z") != "" {
		t.Fatalf("error %v, x on %q, z on %q; want x written to a with an error", err, w.selected("x"), w.selected("z"))
	}
	w.cache.WithWatch, w.r.live = undisturbed, undisturbed
	update(w, makeCapacity("b", 0, 0), func(c *storageCapacity) { c.Capacity = makeCapacity("b", 4*gi, 1).Capacity })
	// The claims of the cache are still those of before.
	w.cache.sync(t, &w.cache.offers)
	w.mustRound()
	got := map[string]string{"x": w.selected("x"), "z": w.selected("z")}
	if diff := cmp.Diff(map[string]string{"x": "a", "z": "b"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestBoundBeforeSeen: a claim whose binding is complete holds its space until its
// volume is seen; the caches of claims and volumes run apart.
func TestBoundBeforeSeen(t *testing.T) {
	w := newWorld(t, append(nodesWith(map[string]int64{"a": 3 * gi}), makeClaim("first", 2*gi))...)
	w.mustRound()
	w.cache.sync(t)
	if err := w.api.Create(context.Background(), makeClaim("second", 2*gi)); err != nil {
		t.Fatal(err)
	}
	w.cache.sync(t)
	w.mustRound()
	update(w, w.claim("first"), func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = volume.PVName(string(c.UID))
		c.Annotations[volume.AnnBindCompleted] = "yes"
	})
	w.cache.sync(t, &w.cache.claims)
	for range 2 {
		w.mustRound()
	}
	if got := w.selected("second"); got != "" {
		t.Errorf("the bytes of a bound claim were promised again, on %q", got)
	}
}
