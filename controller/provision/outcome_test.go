package provision

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/volume"
)

func (w *world) claim() *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	if err := w.api.Get(context.Background(), client.ObjectKeyFromObject(makeClaim()), claim); err != nil {
		w.t.Fatal(err)
	}
	return claim
}

func (w *world) told(t *testing.T, part string) int {
	t.Helper()
	n := 0
	for _, e := range w.events.Told {
		if strings.Contains(e, part) {
			n++
		}
	}
	return n
}

// TestNoRoom: the claim goes back to the scheduler and leaves nothing.
func TestNoRoom(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.driver.Total = volume.GiB / 2
	w.settle(keyOf(makeClaim()))
	if node, ok := w.claim().Annotations[volume.AnnSelectedNode]; ok {
		t.Errorf("node %s is still selected", node)
	}
	if len(w.records()) != 0 || len(w.driver.Volumes()) != 0 {
		t.Errorf("left: records %v, volumes %v", w.records(), w.driver.Volumes())
	}
	if w.told(t, "1 GiB") == 0 || w.told(t, "536870912 bytes free") == 0 {
		t.Errorf("the event must say what was asked and what the driver said: %q", w.events.Told)
	}
}

// TestNoRoomAfterUnknownEnd: the first call ended unknown and had made the
// volume; the second finds it, although there is no room for another.
func TestNoRoomAfterUnknownEnd(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.driver.Total = volume.GiB
	w.driver.Add(volume.PVName(string(testUID)), volume.GiB)
	w.settle(keyOf(makeClaim()))
	if len(w.volumes()) != 1 || len(w.driver.Volumes()) != 1 {
		t.Errorf("PersistentVolumes %v, volumes %v", w.volumes(), w.driver.Volumes())
	}
}

// TestInfeasible: a refused request rests; a class made anew is a new request.
func TestInfeasible(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	calls := 0
	w.driver.Refuse = func(string, int64) error {
		calls++
		return status.Error(codes.InvalidArgument, "media unknown")
	}
	key := keyOf(makeClaim())
	for range 3 {
		w.settle(key)
	}
	if calls != 1 {
		t.Errorf("the driver was asked %d times for what it refused", calls)
	}
	if w.told(t, "media unknown") != 1 {
		t.Errorf("told: %q", w.events.Told)
	}
	if len(w.records()) != 0 {
		t.Errorf("records are left: %v", w.records())
	}
	ctx := context.Background()
	if err := w.api.Delete(ctx, makeClass()); err != nil {
		t.Fatal(err)
	}
	again := makeClass()
	again.UID = "class-2"
	if err := w.api.Create(ctx, again); err != nil {
		t.Fatal(err)
	}
	w.driver.Refuse = nil
	w.settle(key)
	if len(w.volumes()) != 1 {
		t.Errorf("the new class was not tried; told %q", w.events.Told)
	}
}

func TestOutsideAllowedTopologies(t *testing.T) {
	class := makeClass()
	class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
		{Key: volume.LabelZone, Values: []string{"zone-2"}},
	}}}
	w := newWorld(t, makeNode(), makeCSINode(), class, makeClaim())
	w.settle(keyOf(makeClaim()))
	if len(w.driver.Volumes()) != 0 || len(w.records()) != 0 || w.told(t, "outside the allowedTopologies") != 1 {
		t.Errorf("volumes %v, records %v, told %q", w.driver.Volumes(), w.records(), w.events.Told)
	}
	// The node moves to the zone.
	node := makeNode()
	node.Labels[volume.LabelZone] = "zone-2"
	if err := w.api.Update(context.Background(), node); err != nil {
		t.Fatal(err)
	}
	w.settle(keyOf(makeClaim()))
	if len(w.volumes()) != 1 {
		t.Errorf("the claim must be tried again when the node's labels change; told %q", w.events.Told)
	}
}

// TestDriverComesLate: the claim waits for the registration, without a record.
func TestDriverComesLate(t *testing.T) {
	w := newWorld(t, makeNode(), makeClass(), makeClaim())
	w.start()
	if _, err := w.r.Reconcile(context.Background(), keyOf(makeClaim())); err == nil {
		t.Error("a missing CSINode is to be tried again")
	}
	if len(w.records()) != 0 {
		t.Errorf("records %v", w.records())
	}
}

// TestStaleCache: the cache shows the claim as it was. The live check keeps a
// second volume from being made (external-provisioner#1469).
func TestStaleCache(t *testing.T) {
	cases := map[string]struct {
		reason string
		live   []client.Object
	}{
		"deleted":   {reason: "it was served and deleted"},
		"made anew": {reason: "another claim has its name", live: []client.Object{makeClaim(func(c *corev1.PersistentVolumeClaim) { c.UID = otherUID })}},
		"bound":     {reason: "it has its volume", live: []client.Object{makeClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" })}},
		"moved":     {reason: "another node is selected", live: []client.Object{makeClaim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n2" })}},
		"deleting": {reason: "it is about to go", live: []client.Object{makeClaim(func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"kubernetes.io/pvc-protection"}
		})}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
			w.start()
			w.r.live = newWorld(t, tc.live...).api
			if _, err := w.r.Reconcile(context.Background(), keyOf(makeClaim())); err != nil {
				t.Fatal(err)
			}
			if w.driver.EverMade() != 0 || len(w.records()) != 0 || len(w.volumes()) != 0 {
				t.Errorf("%s: made %d volumes, records %v, PersistentVolumes %v", tc.reason, w.driver.EverMade(), w.records(), w.volumes())
			}
		})
	}
}

// TestOtherNodeWasFaster: there is a PersistentVolume of the name already, of
// another node's volume.
func TestOtherNodeWasFaster(t *testing.T) {
	theirs := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume.PVName(string(testUID)), Labels: map[string]string{volume.LabelNode: "n2"}},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{UID: testUID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: volume.DriverName, VolumeHandle: "theirs"}},
		},
	}
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.start()
	// The cache holds this node's PersistentVolumes only, and so not this one.
	cache := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	if err := w.api.Create(context.Background(), theirs); err != nil {
		t.Fatal(err)
	}
	w.r.client = creator{Client: cache.api, writes: w.api}
	for range 3 {
		if _, err := w.r.Reconcile(context.Background(), keyOf(makeClaim())); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.driver.Volumes()) != 0 || len(w.records()) != 0 {
		t.Errorf("left: volumes %v, records %v", w.driver.Volumes(), w.records())
	}
	if pvs := w.volumes(); len(pvs) != 1 || pvs[0].Spec.CSI.VolumeHandle != "theirs" {
		t.Errorf("the other node's PersistentVolume was touched: %v", pvs)
	}
}

// creator reads from a cache and writes to the API server.
type creator struct {
	client.Client
	writes client.Client
}

func (c creator) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return c.writes.Create(ctx, o, opts...)
}

// TestSmallVolume: a driver that makes less than was asked.
func TestSmallVolume(t *testing.T) {
	w := newWorld(t, makeNode(), makeCSINode(), makeClass(), makeClaim())
	w.start()
	w.r.driver = shortDriver{w.driver}
	_, err := w.r.Reconcile(context.Background(), keyOf(makeClaim()))
	if err != nil {
		t.Fatal(err)
	}
	if len(w.driver.Volumes()) != 0 || len(w.volumes()) != 0 || len(w.records()) != 0 {
		t.Errorf("left: volumes %v, PersistentVolumes %v, records %v", w.driver.Volumes(), w.volumes(), w.records())
	}
}

type shortDriver struct{ Driver }

func (d shortDriver) CreateVolume(ctx context.Context, in *csi.CreateVolumeRequest, _ ...grpc.CallOption) (*csi.CreateVolumeResponse, error) {
	out, err := d.Driver.CreateVolume(ctx, in)
	if err == nil {
		out.Volume.CapacityBytes = in.CapacityRange.RequiredBytes - 1
	}
	return out, err
}

// TestWaitingClaims: which claims come back for a new class, or for a
// change of the node.
func TestWaitingClaims(t *testing.T) {
	other := makeClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID = "other", "u2"
		*c.Spec.StorageClassName = "slow"
	})
	bound := makeClaim(func(c *corev1.PersistentVolumeClaim) { c.Name, c.UID, c.Spec.VolumeName = "bound", "u3", "pv" })
	foreign := makeClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID, c.Annotations[volume.AnnSelectedNode] = "foreign", "u4", "n2"
	})
	w := newWorld(t, makeClaim(), other, bound, foreign)
	w.start()
	names := func(about client.Object) string {
		var out []string
		for _, k := range w.r.waitingClaims(context.Background(), about) {
			out = append(out, k.Name)
		}
		return strings.Join(out, " ")
	}
	if got := names(makeNode()); got != "data other" {
		t.Errorf("for the node: %q", got)
	}
	if got := names(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}); got != "other" {
		t.Errorf("for the class: %q", got)
	}
}

func TestFileRecords(t *testing.T) {
	dir := t.TempDir()
	records, err := NewFileRecords(filepath.Join(dir, "records"), plainFiles{})
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "records")
	if _, ok, err := records.Get(testUID); ok || err != nil {
		t.Fatalf("empty: %t, %v", ok, err)
	}
	request, err := buildRequest(requestInput{claim: makeClaim(), class: makeClass(), segments: volume.Topology{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	want := Start(client.ObjectKeyFromObject(makeClaim()), testUID, request).BecomeCreated("pool/x")
	if err := records.Put(want); err != nil {
		t.Fatal(err)
	}
	got, ok, err := records.Get(testUID)
	if err != nil || !ok || fingerprint(makeClass(), got.Request) != fingerprint(makeClass(), request) ||
		got.State != StateCreated || got.VolumeID != "pool/x" || got.Claim != want.Claim {
		t.Fatalf("got %v, %t, %v", got, ok, err)
	}
	// Remains of a write that was cut off, and what no version wrote.
	for name, content := range map[string]string{
		".u.json.tmp": "{", "newer.json": `{"version":2}`, "torn.json": `{"ver`,
		"moved.json": `{"version":1,"claimUID":"x","claimName":"n","claimNamespace":"d","state":"Started","request":{"name":"n"}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := records.List()
	if len(all) != 1 || err == nil || strings.Count(err.Error(), "decoding") != 3 {
		t.Errorf("one record and three complaints, got %v, %v", all, err)
	}
	if _, _, err := records.Get("torn"); err == nil {
		t.Error("a record that cannot be read must not count as none")
	}
	if _, _, err := records.Get("../torn"); err == nil {
		t.Error("a UID must not lead out of the folder")
	}
	for range 2 {
		if err := records.Drop(testUID); err != nil {
			t.Fatal(err)
		}
	}
	if err := records.Put(Record{State: "Odd", ClaimUID: "u"}); err == nil {
		t.Error("an unknown state must not be written")
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{Scope: testScope()}, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "Records") {
		t.Errorf("what is missing must be named: %v", err)
	}
	if _, err := New(Config{}, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "Scope.Driver") {
		t.Errorf("what is missing must be named: %v", err)
	}
	w := newWorld(t)
	w.start()
	if w.r.callTimeout != 30*time.Second {
		t.Errorf("call timeout %s", w.r.callTimeout)
	}
}
