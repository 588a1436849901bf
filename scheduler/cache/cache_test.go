package cache

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// stores is a cache whose informers never run: a test writes the stores itself
// and chooses when the cache hears of it.
type stores struct {
	*Cache
	t       testing.TB
	factory informers.SharedInformerFactory
	clock   *clocktesting.FakeClock
	ended   chan struct{}
}

func newStores(t testing.TB) *stores {
	s := &stores{t: t, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)), ended: make(chan struct{}, 8)}
	s.factory = informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	c, err := New(s.factory, Options{Clock: s.clock, Ended: func() { s.ended <- struct{}{} }, AttachGrace: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s.Cache = c
	s.set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: nodeLabels("n1")}})
	s.set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "A"}, Provisioner: "d", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})
	s.set(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}})
	return s
}

func (s *stores) store(o any) cache.Store {
	core, storage := s.factory.Core().V1(), s.factory.Storage().V1()
	switch o.(type) {
	case *corev1.Node:
		return core.Nodes().Informer().GetStore()
	case *corev1.PersistentVolumeClaim:
		return core.PersistentVolumeClaims().Informer().GetStore()
	case *corev1.PersistentVolume:
		return core.PersistentVolumes().Informer().GetStore()
	case *storagev1.StorageClass:
		return storage.StorageClasses().Informer().GetStore()
	case *storagev1.CSIDriver:
		return storage.CSIDrivers().Informer().GetStore()
	case *storagev1.CSIStorageCapacity:
		return storage.CSIStorageCapacities().Informer().GetStore()
	case *storagev1.CSINode:
		return storage.CSINodes().Informer().GetStore()
	case *storagev1.VolumeAttachment:
		return storage.VolumeAttachments().Informer().GetStore()
	}
	panic(fmt.Sprintf("no store for %T", o))
}

// set changes the store and tells the cache; put only changes the store.
func (s *stores) set(o any) { s.put(o); s.Observe(o) }

func (s *stores) put(o any) {
	if err := s.store(o).Add(o); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stores) remove(o any) {
	if err := s.store(o).Delete(o); err != nil {
		s.t.Fatal(err)
	}
	s.Observe(o)
}

func (s *stores) free() int64 {
	most, _ := s.Snapshot().MostAvailable(&binding.Class{Name: "A"})
	return most
}

func pvc(uid, version, node string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: types.UID(uid), ResourceVersion: version},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("A"), Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("30")},
		}},
	}
	if node != "" {
		c.Annotations = map[string]string{volume.AnnSelectedNode: node}
	}
	return c
}

func capacityObject(version string, annotations map[string]string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "ns", Name: "A-n1", ResourceVersion: version, Annotations: annotations},
		StorageClassName: "A", Capacity: new(resource.MustParse("100")),
		NodeTopology: &metav1.LabelSelector{MatchLabels: nodeLabels("n1")},
	}
}

func numbers(pool, n string) map[string]string {
	return map[string]string{volume.AnnotationPool: pool, volume.AnnotationAllocation: n}
}

func planU1() binding.BindPlan {
	return binding.BindPlan{Node: "n1", Selects: []binding.Select{{Claim: "default/c", ClaimUID: "u1"}}}
}

func TestFirstSnapshotReadsTheStores(t *testing.T) {
	s := newStores(t)
	s.put(capacityObject("1", numbers("P", "5")))
	s.put(pvc("u1", "2", "n1"))
	if got := s.free(); got != 70 {
		t.Errorf("%d free before any event was handled, want 70: a claim selected before the restart is held", got)
	}
}

func TestSnapshotNeverChanges(t *testing.T) {
	s := newStores(t)
	s.set(capacityObject("1", numbers("P", "5")))
	before := s.Snapshot()
	s.set(pvc("u1", "2", ""))
	if err := s.Assume(planU1(), "pod"); err != nil {
		t.Fatal(err)
	}
	old, _ := before.MostAvailable(&binding.Class{Name: "A"})
	if now := s.free(); old != 100 || now != 70 {
		t.Errorf("old snapshot %d, new one %d; want 100, 70", old, now)
	}
	if s.Snapshot() != s.Snapshot() {
		t.Error("a snapshot is made anew although nothing changed")
	}
}

// TestSnapshotsAreReadWhileTheCacheMovesOn shows, under the race detector, that
// the nodes of a cycle may be judged in parallel with events and reservations,
// and that every reader of one snapshot sees one state.
func TestSnapshotsAreReadWhileTheCacheMovesOn(t *testing.T) {
	s := newStores(t)
	for i := range 50 {
		name := fmt.Sprint("n", i)
		s.set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: nodeLabels(name)}})
		o := capacityObject("1", numbers("P"+name, "5"))
		o.Name, o.NodeTopology.MatchLabels = name, nodeLabels(name)
		s.set(o)
	}
	s.set(pvc("u1", "2", ""))
	plan := planU1()
	var group errgroup.Group
	for range 4 {
		group.Go(func() error {
			for range 100 {
				view := s.Snapshot()
				first, _ := view.MostAvailable(&binding.Class{Name: "A"})
				for i := range 50 {
					node := binding.Node{Name: fmt.Sprint("n", i), Labels: nodeLabels(fmt.Sprint("n", i))}
					room := view.Room("A")
					before, after := room.Segments(nil, &node), room.Segments(nil, &node)
					if len(before) != 1 || len(after) != 1 || before[0] != after[0] || before[0].Available > first {
						return fmt.Errorf("a snapshot changed on %s: %v, then %v", node.Name, before, after)
					}
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		for i := range 200 {
			if err := s.Assume(plan, "pod"); err != nil {
				return err
			}
			o := capacityObject(strconv.Itoa(i+2), numbers("Pn1", strconv.Itoa(i+6)))
			o.Name = "n1"
			s.set(o)
			s.Forget(plan, "pod")
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := s.free(); got != 100 {
		t.Errorf("%d free at the end, want 100", got)
	}
}

func TestClaimReplacedByANamesake(t *testing.T) {
	s := newStores(t)
	s.set(capacityObject("1", numbers("P", "5")))
	s.set(pvc("u1", "2", ""))
	if err := s.Assume(planU1(), "pod"); err != nil {
		t.Fatal(err)
	}
	// The watch missed the deletion: only the new claim is seen.
	s.set(pvc("u2", "9", ""))
	if got := s.free(); got != 100 {
		t.Errorf("%d free: the new claim inherited the hold of the old one", got)
	}
	if err := s.Assume(planU1(), "pod"); err == nil {
		t.Error("a plan for the old claim was taken for the new one")
	}
}

func TestAssumeIsAllOrNothing(t *testing.T) {
	pv := func(claim string) *corev1.PersistentVolume {
		p := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "uv", ResourceVersion: "3"},
			Spec:       corev1.PersistentVolumeSpec{StorageClassName: "A", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("50")}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		}
		if claim != "" {
			p.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: claim, UID: "other"}
		}
		return p
	}
	deleting := pvc("u1", "2", "")
	deleting.DeletionTimestamp = new(metav1.Now())
	bound := pvc("u1", "2", "")
	bound.Spec.VolumeName = "elsewhere"
	cases := map[string]struct {
		reason string
		change func(s *stores)
	}{
		"claim gone":         {"the second step fails", func(s *stores) { s.remove(pvc("u1", "2", "")) }},
		"claim deleting":     {"the second step fails", func(s *stores) { s.set(deleting) }},
		"claim bound":        {"the second step fails", func(s *stores) { s.set(bound) }},
		"selected elsewhere": {"the second step fails", func(s *stores) { s.set(pvc("u1", "2", "n9")) }},
		"volume taken":       {"the first step fails", func(s *stores) { s.set(pv("thief")) }},
		"volume gone":        {"the first step fails", func(s *stores) { s.remove(pv("")) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.set(capacityObject("1", numbers("P", "5")))
			s.set(pv(""))
			s.set(pvc("u1", "2", ""))
			second := pvc("u2", "2", "")
			second.Name = "d"
			s.set(second)
			plan := planU1()
			plan.Binds = []binding.Bind{{Claim: "default/d", ClaimUID: "u2", Volume: "v", VolumeUID: "uv"}}
			tc.change(s)
			if err := s.Assume(plan, "pod"); err == nil {
				t.Fatalf("%s, and yet Assume succeeded", tc.reason)
			}
			if len(s.volumes.assumed) > 0 {
				t.Errorf("volumes stay assumed: %v", s.volumes.assumed)
			}
			for uid, h := range s.ledger.holds {
				if h.reserved != nil {
					t.Errorf("claim %s stays reserved", uid)
				}
			}
		})
	}
}

// TestAssumedVolume: who may see a volume as free, from Reserve to the
// informer's word.
func TestAssumedVolume(t *testing.T) {
	pv := func(version string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		p := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "uv", ResourceVersion: version},
			Spec:       corev1.PersistentVolumeSpec{StorageClassName: "A", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("50")}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		}
		if change != nil {
			change(p)
		}
		return p
	}
	claimed := func(p *corev1.PersistentVolume) {
		p.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "u1"}
	}
	plan := binding.BindPlan{Node: "n1", Binds: []binding.Bind{{Claim: "default/c", ClaimUID: "u1", Volume: "v", VolumeUID: "uv"}}}
	cases := map[string]struct {
		reason       string
		steps        func(s *stores)
		free, ofMine bool
	}{
		"nothing":             {"free", func(s *stores) {}, true, false},
		"assumed":             {"taken, and reserved for its claim", func(s *stores) { s.mustAssume(plan) }, false, true},
		"forgotten":           {"free again", func(s *stores) { s.mustAssume(plan); s.Forget(plan, "pod") }, true, false},
		"forgotten, stranger": {"another pod's Unreserve changes nothing", func(s *stores) { s.mustAssume(plan); s.Forget(plan, "other") }, false, true},
		"unrelated change": {"a label does not free it", func(s *stores) {
			s.mustAssume(plan)
			s.set(pv("4", func(p *corev1.PersistentVolume) { p.Labels = map[string]string{"a": "b"} }))
		}, false, true},
		"seen":               {"the informer's claimRef is the truth from here", func(s *stores) { s.mustAssume(plan); s.set(pv("4", claimed)); s.Forget(plan, "pod") }, false, true},
		"written, forgotten": {"the API says taken before the informer does", func(s *stores) { s.mustAssume(plan); s.WroteVolume(pv("4", claimed)); s.Forget(plan, "pod") }, false, true},
		"written, undone":    {"a newer volume without claimRef is free", func(s *stores) { s.mustAssume(plan); s.WroteVolume(pv("4", claimed)); s.set(pv("5", nil)) }, true, false},
		"written late": {"the informer was faster than the answer", func(s *stores) {
			s.mustAssume(plan)
			s.set(pv("4", claimed))
			s.WroteVolume(pv("4", claimed))
			s.set(pv("5", nil))
		}, true, false},
		"replaced": {"another volume of the name is free", func(s *stores) {
			s.mustAssume(plan)
			s.set(pv("9", func(p *corev1.PersistentVolume) { p.UID = "new" }))
		}, true, false},
		"deleted": {"gone", func(s *stores) { s.mustAssume(plan); s.remove(pv("3", nil)) }, false, false},
		"released": {"a volume that had a claim is not offered", func(s *stores) {
			s.set(pv("4", func(p *corev1.PersistentVolume) { p.Status.Phase = corev1.VolumeReleased }))
		}, false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStores(t)
			s.set(pvc("u1", "2", ""))
			s.set(pv("3", nil))
			tc.steps(s)
			free := false
			if shelf := s.Snapshot().Shelf(&binding.Claim{Class: binding.Class{Name: "A"}}); shelf != nil {
				shelf.Ascend(&binding.Node{Name: "n1"}, 0, taker(func(*binding.Volume) bool { free = true; return true }))
			}
			q, err := s.Ask([]*corev1.PersistentVolumeClaim{pvc("u1", "2", "")})
			if err != nil {
				t.Fatal(err)
			}
			mine := q.Pod.Delayed[0].Reserved != nil
			if free != tc.free || mine != tc.ofMine {
				t.Errorf("%s: free %v, reserved for its claim %v; want %v, %v", tc.reason, free, mine, tc.free, tc.ofMine)
			}
		})
	}
}

// TestReservedIsWhatFits: of the volumes that name a claim, one that can serve it is
// its volume; upstream skips the others too.
func TestReservedIsWhatFits(t *testing.T) {
	s := newStores(t)
	s.set(pvc("u1", "2", ""))
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"a-block": func(p *corev1.PersistentVolume) { p.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
		"b-small": func(p *corev1.PersistentVolume) {
			p.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1")}
		},
		"c-class": func(p *corev1.PersistentVolume) { p.Spec.StorageClassName = "B" },
		"d-fits":  func(*corev1.PersistentVolume) {},
		"e-fits":  func(*corev1.PersistentVolume) {},
	} {
		p := localVolume(name, "n1", 1)
		p.Spec.StorageClassName = "A"
		p.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "c"}
		change(p)
		s.set(p)
	}
	q, err := s.Ask([]*corev1.PersistentVolumeClaim{pvc("u1", "2", "")})
	if err != nil {
		t.Fatal(err)
	}
	if got := q.Pod.Delayed[0].Reserved; got == nil || got.Name != "d-fits" {
		t.Errorf("reserved %+v, want d-fits", got)
	}
}

// taker is a binding.Taker.
type taker func(*binding.Volume) bool

func (t taker) Take(v *binding.Volume) bool { return t(v) }

func (s *stores) mustAssume(plan binding.BindPlan) {
	if err := s.Assume(plan, "pod"); err != nil {
		s.t.Fatal(err)
	}
}

// TestTimeEndsAHold: a driver that numbers nothing and publishes nothing more.
func TestTimeEndsAHold(t *testing.T) {
	s := newStores(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	s.set(capacityObject("1", nil))
	s.set(pvc("u1", "2", "n1"))
	s.set(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", ResourceVersion: "3"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("30")}, ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "u1"},
	}})
	if got := s.free(); got != 70 {
		t.Fatalf("%d free, want 70", got)
	}
	waitForTimer(t, s.clock)
	s.clock.Step(UnnumberedGrace)
	select {
	case <-s.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody was told that the hold ended")
	}
	if got := s.free(); got != 100 {
		t.Errorf("%d free after the grace, want 100", got)
	}
	cancel()
	<-done
}

// waitForTimer waits until Run sleeps on the fake clock.
func waitForTimer(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !clk.HasWaiters() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("no timer was set")
		}
	}
}

func TestWaiters(t *testing.T) {
	s := newStores(t)
	w := s.Wait(ClaimKey("default/c"), VolumeKey("v"))
	told := func() bool {
		select {
		case <-w.C:
			return true
		default:
			return false
		}
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "w"}, Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "c"}}}
	var got []bool
	note := func() { got = append(got, told()) }
	note()
	s.set(pvc("u1", "2", ""))
	note()
	s.set(pvc("u1", "3", ""))
	s.set(pvc("u1", "4", ""))
	note()
	note()
	s.set(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}})
	note()
	s.set(pv)
	note()
	s.set(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
	note()
	s.Stop(w)
	s.set(pvc("u1", "5", ""))
	note()
	want := []bool{false, true, true, false, true, true, false, false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nothing, the claim, twice merged, nothing, the volume, a volume of the claim, a stranger, stopped: (-want +got)\n%s", diff)
	}
	if len(s.waiters) != 0 {
		t.Errorf("waiters are kept: %v", s.waiters)
	}
}

func capacityQuantity(bytes string) resource.Quantity { return resource.MustParse(bytes) }
