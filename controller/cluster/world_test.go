package cluster

import (
	"context"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/volume"
)

const gi = volume.GiB

// makeNode makes a ready node and its CSINode with the driver.
func makeNode(name string) (*corev1.Node, *storagev1.CSINode) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{volume.TopologyNodeKey: name}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	csiNode := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: volume.DriverName, NodeID: name, TopologyKeys: []string{volume.TopologyNodeKey}}}},
	}
	return node, csiNode
}

func makeClass(name string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: volume.DriverName, VolumeBindingMode: new(mode)}
}

// makeCapacity is what a node's pool, named like the node, publishes.
func makeCapacity(node string, bytes, allocation int64) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "csisc-" + node, Annotations: map[string]string{
			volume.AnnotationPool: "pool-" + node, volume.AnnotationAllocation: strconv.FormatInt(allocation, 10),
		}},
		StorageClassName: "now", Capacity: resource.NewQuantity(bytes, resource.BinarySI),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{volume.TopologyNodeKey: node}},
	}
}

func makeClaim(name string, bytes int64, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			Annotations: map[string]string{volume.AnnStorageProvisioner: volume.DriverName},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("now"),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI),
			}},
		},
	}
	for _, c := range change {
		c(pvc)
	}
	return pvc
}

func selectedFor(node string) func(*corev1.PersistentVolumeClaim) {
	return func(pvc *corev1.PersistentVolumeClaim) { pvc.Annotations[volume.AnnSelectedNode] = node }
}

// makeVolume is the PersistentVolume of a claim, in the pool of a node.
func makeVolume(pvc *corev1.PersistentVolumeClaim, node string, allocation int64) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume.PVName(string(pvc.UID)), Annotations: map[string]string{
			volume.AnnotationPool: "pool-" + node, volume.AnnotationAllocation: strconv.FormatInt(allocation, 10),
		}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: pvc.Spec.Resources.Requests[corev1.ResourceStorage]},
			ClaimRef: &corev1.ObjectReference{Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID},
		},
	}
}

// cached is the controller's client: it writes to the API server and lists what
// each kind was at its last sync.
type cached struct {
	client.WithWatch
	api     client.Client
	claims  corev1.PersistentVolumeClaimList
	volumes corev1.PersistentVolumeList
	nodes   corev1.NodeList
	offers  storagev1.CSIStorageCapacityList
}

func (c *cached) sync(t *testing.T, lists ...client.ObjectList) {
	t.Helper()
	if len(lists) == 0 {
		lists = []client.ObjectList{&c.claims, &c.volumes, &c.nodes, &c.offers}
	}
	for _, l := range lists {
		if err := c.api.List(context.Background(), l); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	switch l := list.(type) {
	case *corev1.PersistentVolumeClaimList:
		l.Items = nil
		for i := range c.claims.Items {
			if len(openClaims(volume.DriverName)(&c.claims.Items[i])) > 0 {
				l.Items = append(l.Items, *c.claims.Items[i].DeepCopy())
			}
		}
	case *corev1.PersistentVolumeList:
		c.volumes.DeepCopyInto(l)
	case *corev1.NodeList:
		c.nodes.DeepCopyInto(l)
	case *storagev1.CSIStorageCapacityList:
		c.offers.DeepCopyInto(l)
	default:
		return c.api.List(ctx, list, opts...)
	}
	return nil
}

// world is a cluster with the controller in it.
type world struct {
	t      *testing.T
	api    client.WithWatch
	steps  *csitest.Steps
	cache  *cached
	events *csitest.Events
	clock  *testclock.FakePassiveClock
	r      *Reconciler
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{
		t: t, steps: &csitest.Steps{}, events: &csitest.Events{}, clock: testclock.NewFakePassiveClock(time.Unix(1_800_000_000, 0)),
		api: csitest.API(append(objects, makeClass("now", storagev1.VolumeBindingImmediate), makeClass("later", storagev1.VolumeBindingWaitForFirstConsumer))...),
	}
	w.cache = &cached{WithWatch: csitest.Disturbed(w.api, w.steps), api: w.api}
	w.cache.sync(t)
	w.start()
	return w
}

// start is a new leader's term.
func (w *world) start() {
	w.t.Helper()
	var err error
	w.r, err = New(Config{Driver: volume.DriverName, Namespace: "berth-system", Clock: w.clock}, w.cache, csitest.Disturbed(w.api, w.steps), w.events)
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) round() error {
	_, err := w.r.Reconcile(context.Background(), reconcile.Request{})
	return err
}

func (w *world) mustRound() {
	w.t.Helper()
	if err := w.round(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	pvc := &corev1.PersistentVolumeClaim{}
	if err := w.api.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, pvc); err != nil {
		w.t.Fatal(err)
	}
	return pvc
}

func (w *world) selected(name string) string {
	w.t.Helper()
	return w.claim(name).Annotations[volume.AnnSelectedNode]
}

// update changes an object on the API server.
func update[T client.Object](w *world, o T, change func(T)) {
	w.t.Helper()
	ctx := context.Background()
	if err := w.api.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		w.t.Fatal(err)
	}
	change(o)
	if err := w.api.Update(ctx, o); err != nil {
		w.t.Fatal(err)
	}
}

// nodesWith makes nodes, each with a pool of so much free space.
func nodesWith(free map[string]int64) []client.Object {
	var out []client.Object
	for name, bytes := range free {
		n, c := makeNode(name)
		out = append(out, n, c, makeCapacity(name, bytes, 0))
	}
	return out
}
