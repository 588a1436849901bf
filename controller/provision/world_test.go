package provision

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/controller/inflight"
	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

const (
	testNode = "n1"
	testUID  = types.UID("11111111-0000-4000-8000-000000000001")
)

func testScope() scope.Scope { return scope.Scope{Driver: volume.DriverName, Node: testNode} }

func makeNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, Labels: map[string]string{
		volume.TopologyNodeKey: testNode, volume.LabelZone: "zone-1",
	}}}
}

func makeCSINode() *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: testNode},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: volume.DriverName, NodeID: testNode, TopologyKeys: []string{volume.TopologyNodeKey, volume.LabelZone},
		}}},
	}
}

func makeClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "fast", UID: "class-1"},
		Provisioner:       volume.DriverName,
		Parameters:        map[string]string{volume.ParameterFSType: "ext4"},
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// makeClaim makes a claim that is to be provisioned on testNode.
func makeClaim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "data", UID: testUID,
			Annotations: map[string]string{
				volume.AnnStorageProvisioner: volume.DriverName,
				volume.AnnSelectedNode:       testNode,
			},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("fast"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi"),
			}},
		},
	}
	for _, c := range change {
		c(claim)
	}
	return claim
}

// world is everything that outlives a process of the agent.
type world struct {
	t      *testing.T
	api    client.WithWatch
	driver *csitest.Driver
	dir    string
	events *csitest.Events
	steps  *csitest.Steps
	// labelled: the cache holds claims with the node's label only.
	labelled bool
	// r is the running process; nil after a crash.
	r *Reconciler
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	steps := &csitest.Steps{}
	return &world{
		t: t, api: csitest.API(objects...), dir: t.TempDir(), events: &csitest.Events{}, steps: steps,
		driver: &csitest.Driver{
			Steps: steps, Total: 10 * volume.GiB, Topology: map[string]string{volume.TopologyNodeKey: testNode},
		},
	}
}

// records are the records on disk, undisturbed.
func (w *world) records() []Record {
	w.t.Helper()
	files, err := NewFileRecords(w.dir, plainFiles{})
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := files.List()
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// start starts the process.
func (w *world) start() {
	w.t.Helper()
	files, err := NewFileRecords(w.dir, plainFiles{})
	if err != nil {
		w.t.Fatal(err)
	}
	api := csitest.Disturbed(w.api, w.steps)
	cached := api
	if w.labelled {
		cached = csitest.Disturbed(csitest.Labelled(w.api), w.steps)
	}
	w.r, err = New(Config{
		Scope: testScope(), Driver: w.driver, Capabilities: w.driver,
		Records: disturbedRecords{files, w.steps}, InFlight: &inflight.Set{},
	}, cached, api, w.events)
	if err != nil {
		w.t.Fatal(err)
	}
}

// settle reconciles the claim, over crashes, until there is nothing left to do
// now.
func (w *world) settle(key Key) {
	w.t.Helper()
	for range 40 {
		if w.r == nil {
			w.start()
		}
		quiet := false
		if csitest.Survive(func() {
			result, err := w.r.Reconcile(context.Background(), key)
			quiet = err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > time.Second)
		}) {
			w.r = nil
			continue
		}
		if quiet {
			return
		}
	}
	w.t.Fatalf("no end after 40 passes; steps: %v", w.steps.Trail())
}

func (w *world) volumes() []corev1.PersistentVolume {
	w.t.Helper()
	var list corev1.PersistentVolumeList
	if err := w.api.List(context.Background(), &list); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func keyOf(claim *corev1.PersistentVolumeClaim) Key {
	return Key{NamespacedName: client.ObjectKeyFromObject(claim), UID: claim.UID}
}

// plainFiles writes without fsync: the tests end processes, not machines.
type plainFiles struct{}

func (plainFiles) ReplaceFile(file string, content []byte) error {
	return os.WriteFile(file, content, 0o600)
}

func (plainFiles) RemoveFile(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// disturbedRecords are records whose every use is a step.
type disturbedRecords struct {
	Records
	steps *csitest.Steps
}

var errDisk = errors.New("disturbed disk")

func (d disturbedRecords) Get(uid types.UID) (r Record, ok bool, err error) {
	err = d.steps.Do("record get", errDisk, func() error {
		r, ok, err = d.Records.Get(uid)
		return err
	})
	return r, ok, err
}

func (d disturbedRecords) Put(r Record) error {
	return d.steps.Do("record put "+string(r.State), errDisk, func() error { return d.Records.Put(r) })
}

func (d disturbedRecords) Drop(uid types.UID) error {
	return d.steps.Do("record drop", errDisk, func() error { return d.Records.Drop(uid) })
}
