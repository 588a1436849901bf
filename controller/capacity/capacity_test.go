package capacity

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/inflight"
	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/volume"
)

func makeClass(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
}

type world struct {
	t        *testing.T
	api      client.WithWatch
	driver   *csitest.Driver
	steps    *csitest.Steps
	inflight *inflight.Set
	source   Source
	r        *Reconciler
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, api: csitest.API(objects...), steps: &csitest.Steps{}, inflight: &inflight.Set{}}
	w.driver = &csitest.Driver{Total: 10 * volume.GiB}
	w.source = w.driver
	return w
}

func (w *world) start() {
	w.t.Helper()
	api := csitest.Disturbed(w.api, w.steps)
	var err error
	w.r, err = New(Config{Scope: testScope(), Namespace: "berth-system", Source: w.source, InFlight: w.inflight}, api, api)
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reconcile() error {
	_, err := w.r.Reconcile(context.Background(), reconcile.Request{})
	return err
}

func (w *world) settle() {
	w.t.Helper()
	for range 10 {
		if w.r == nil {
			w.start()
		}
		var err error
		if csitest.Survive(func() { err = w.reconcile() }) {
			w.r = nil
		} else if err == nil {
			return
		}
	}
	w.t.Fatalf("no end after 10 passes; steps: %v", w.steps.Trail())
}

// published is class → "available GiB @ allocation".
func (w *world) published() map[string]string {
	w.t.Helper()
	var list storagev1.CSIStorageCapacityList
	if err := w.api.List(context.Background(), &list); err != nil {
		w.t.Fatal(err)
	}
	out := make(map[string]string)
	for _, o := range list.Items {
		if _, twice := out[o.StorageClassName]; twice {
			w.t.Errorf("class %s has two objects", o.StorageClassName)
		}
		out[o.StorageClassName] = fmt.Sprintf("%d @ %s", o.Capacity.Value()/volume.GiB, o.Annotations[volume.AnnotationAllocation])
	}
	return out
}

func (w *world) want(reason string, want map[string]string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.published()); diff != "" {
		w.t.Errorf("%s: (-want +got)\n%s", reason, diff)
	}
}

func TestClassesComeAndGo(t *testing.T) {
	w := newWorld(t, makeNode(), makeClass("a", volume.DriverName), makeClass("x", "other"))
	w.settle()
	w.want("the driver's classes only", map[string]string{"a": "10 @ 0"})
	ctx := context.Background()
	if err := w.api.Create(ctx, makeClass("b", volume.DriverName)); err != nil {
		t.Fatal(err)
	}
	w.driver.Add("v", volume.GiB)
	w.settle()
	w.want("a class is added", map[string]string{"a": "9 @ 1", "b": "9 @ 1"})
	if err := w.api.Delete(ctx, makeClass("a", volume.DriverName)); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.want("a class is removed", map[string]string{"b": "9 @ 1"})
}

// TestDeletionRaises: also where the process that deleted the volume ended
// before it published, and a new one finds the old object.
func TestDeletionRaises(t *testing.T) {
	w := newWorld(t, makeNode(), makeClass("a", volume.DriverName))
	id := w.driver.Add("v", 4*volume.GiB)
	w.settle()
	w.want("with the volume", map[string]string{"a": "6 @ 1"})
	if _, err := w.driver.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Fatal(err)
	}
	w.r = nil
	w.settle()
	w.want("without it", map[string]string{"a": "10 @ 2"})
}

func TestEveryFault(t *testing.T) {
	for _, mode := range csitest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			for at := 1; ; at++ {
				// One object to create, one to update, one to remove.
				w := newWorld(t, makeNode(), makeClass("a", volume.DriverName), makeClass("b", volume.DriverName),
					object("b", volume.PoolCapacity{Pool: "old"}), object("c", volume.PoolCapacity{Pool: "old"}))
				w.steps.At, w.steps.Mode = at, mode
				w.settle()
				w.want(fmt.Sprintf("disturbed at %d of %v", at, w.steps.Trail()), map[string]string{"a": "10 @ 0", "b": "10 @ 0"})
				if !w.steps.Hit() || t.Failed() {
					return
				}
			}
		})
	}
}

// TestWritesOnlyOnChange: a second pass writes nothing.
func TestWritesOnlyOnChange(t *testing.T) {
	w := newWorld(t, makeNode(), makeClass("a", volume.DriverName))
	w.settle()
	version := func() string {
		o := &storagev1.CSIStorageCapacity{}
		key := client.ObjectKey{Namespace: "berth-system", Name: objectName("n1", "a")}
		if err := w.api.Get(context.Background(), key, o); err != nil {
			t.Fatal(err)
		}
		return o.ResourceVersion
	}
	before := version()
	w.settle()
	if after := version(); after != before {
		t.Errorf("written without a change: %s, then %s", before, after)
	}
}

// TestStaleCache: the cache does not know the last write.
func TestStaleCache(t *testing.T) {
	cases := map[string]struct {
		reason string
		cached []client.Object
	}{
		"creation unseen": {"the object exists already", []client.Object{makeNode(), makeClass("a", volume.DriverName)}},
		"update unseen": {"the object is newer than the cache", []client.Object{
			makeNode(), makeClass("a", volume.DriverName),
			func() client.Object {
				o := object("a", volume.PoolCapacity{Pool: "old"})
				o.ResourceVersion = "77"
				return o
			}(),
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, makeNode(), makeClass("a", volume.DriverName))
			w.settle()
			w.driver.Add("v", volume.GiB)
			w.r.client = readsFrom{Client: w.api, cache: csitest.API(tc.cached...)}
			if err := w.reconcile(); err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			w.want(tc.reason, map[string]string{"a": "9 @ 1"})
		})
	}
}

// readsFrom reads from a cache and writes to the API server.
type readsFrom struct {
	client.Client
	cache client.Client
}

func (c readsFrom) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.cache.Get(ctx, key, o, opts...)
}

func (c readsFrom) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return c.cache.List(ctx, l, opts...)
}

// TestNoLabel: while the driver's label is away, what is published stays.
func TestNoLabel(t *testing.T) {
	node := makeNode()
	node.Labels = nil
	w := newWorld(t, node, makeClass("a", volume.DriverName), object("a", volume.PoolCapacity{Pool: "p", Allocation: 3, Available: volume.GiB}))
	w.settle()
	w.want("no label", map[string]string{"a": "1 @ 3"})
}

// partialSource has no answer for one class.
type partialSource struct{ *csitest.Driver }

func (s partialSource) Capacity(ctx context.Context, parameters map[string]string) (volume.PoolCapacity, error) {
	if parameters["broken"] != "" {
		return volume.PoolCapacity{}, errors.New("pool does not answer")
	}
	return s.Driver.Capacity(ctx, parameters)
}

func TestUnreadClass(t *testing.T) {
	broken := makeClass("b", volume.DriverName)
	broken.Parameters = map[string]string{"broken": "yes"}
	w := newWorld(t, makeNode(), makeClass("a", volume.DriverName), broken,
		object("b", volume.PoolCapacity{Pool: "p", Allocation: 3, Available: volume.GiB}))
	w.source = partialSource{w.driver}
	w.start()
	if err := w.reconcile(); err == nil {
		t.Error("a class without an answer is to be tried again")
	}
	w.want("one class does not hold up the others", map[string]string{"a": "10 @ 0", "b": "1 @ 3"})
}

// TestAfterTheVolume: a capacity that may contain a volume is published after
// the volume's PersistentVolume, and later provisionings do not hold it up.
func TestAfterTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, makeNode(), makeClass("a", volume.DriverName))
		w.start()
		acknowledged := w.inflight.Begin()
		w.driver.Add("v", volume.GiB)
		done := make(chan error, 1)
		go func() { done <- w.reconcile() }()
		synctest.Wait()
		w.want("the PersistentVolume is not there yet", map[string]string{})
		later := w.inflight.Begin()
		defer later()
		acknowledged()
		synctest.Wait()
		w.want("it is there now", map[string]string{"a": "9 @ 1"})
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestHangingProvisioning: a call that hangs does not hide freed space for ever.
func TestHangingProvisioning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, makeNode(), makeClass("a", volume.DriverName))
		w.start()
		defer w.inflight.Begin()()
		began := time.Now()
		if err := w.reconcile(); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("waited %s", waited)
		}
		w.want("after the bound", map[string]string{"a": "10 @ 0"})
	})
}

// TestForward: one round at the start, one for every signal, none after the end.
func TestForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		signals := make(chan struct{}, 1)
		rounds := 0
		go forward(ctx, signals, func() { rounds++ })
		synctest.Wait()
		if rounds != 1 {
			t.Errorf("at the start: %d", rounds)
		}
		signals <- struct{}{}
		synctest.Wait()
		if rounds != 2 {
			t.Errorf("after a signal: %d", rounds)
		}
		cancel()
		synctest.Wait()
		if rounds != 2 {
			t.Errorf("after the end: %d", rounds)
		}
	})
}
