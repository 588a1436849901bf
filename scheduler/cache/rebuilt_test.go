package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/test/seeds"
	"github.com/berth-storage/berth/volume"
)

// life is a cache whose objects change at random, and whose events come late.
type life struct {
	*stores
	r       *rand.Rand
	rv      int
	objs    map[string]any
	pending []any
	log     []string
	plans   []binding.BindPlan
}

func emptyStores(t testing.TB) *stores {
	s := &stores{t: t, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)), ended: make(chan struct{}, 8)}
	s.factory = informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	c, err := New(s.factory, Options{Clock: s.clock, AttachGrace: time.Minute, Sharing: []Sharing{{Driver: "d2", Parameter: "p"}}})
	if err != nil {
		t.Fatal(err)
	}
	s.Cache = c
	return s
}

func pick[T any](r *rand.Rand, l ...T) T { return l[r.IntN(len(l))] }

func (f *life) version() string  { f.rv++; return strconv.Itoa(f.rv) }
func (f *life) nodeName() string { return pick(f.r, "n1", "n2", "n3", "n4") }

func (f *life) reqs() []corev1.NodeSelectorRequirement {
	var out []corev1.NodeSelectorRequirement
	for range f.r.IntN(3) {
		key := pick(f.r, "host", "zone", "x", "y")
		op := pick(f.r, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist)
		e := corev1.NodeSelectorRequirement{Key: key, Operator: op}
		if op == corev1.NodeSelectorOpIn || op == corev1.NodeSelectorOpNotIn {
			for range 1 + f.r.IntN(2) {
				e.Values = append(e.Values, f.value(key))
			}
		}
		out = append(out, e)
	}
	return out
}

func (f *life) value(key string) string {
	if key == "host" {
		return f.nodeName()
	}
	return pick(f.r, "a", "b", "")
}

func (f *life) affinity() *corev1.VolumeNodeAffinity {
	if f.r.IntN(4) == 0 {
		return nil
	}
	s := &corev1.NodeSelector{}
	for range 1 + f.r.IntN(2) {
		t := corev1.NodeSelectorTerm{MatchExpressions: f.reqs()}
		if f.r.IntN(5) == 0 {
			t.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: pick(f.r, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{f.nodeName()}}}
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, t)
	}
	return &corev1.VolumeNodeAffinity{Required: s}
}

func (f *life) topology() *metav1.LabelSelector {
	switch f.r.IntN(8) {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: pick(f.r, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{"a", pick(f.r, "a", "b")}}}}
	case 3:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"zone": f.value("zone"), "host": f.nodeName()}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"host": f.nodeName()}}
}

// change sets or removes an object; its event may come late.
func (f *life) change(o any, gone bool) {
	kind := fmt.Sprintf("%T", o)
	m, _ := o.(metav1.Object)
	key := kind + " " + m.GetNamespace() + "/" + m.GetName()
	if gone {
		if f.objs[key] == nil {
			return
		}
		f.log = append(f.log, "remove "+key)
		delete(f.objs, key)
		if err := f.store(o).Delete(o); err != nil {
			f.t.Fatal(err)
		}
	} else {
		f.log = append(f.log, "set "+key)
		f.objs[key] = o
		f.put(o)
	}
	if f.r.IntN(3) == 0 {
		f.pending = append(f.pending, o)
	} else {
		f.Observe(o)
	}
}

// flush lets the late events come, in any order.
func (f *life) flush() {
	f.r.Shuffle(len(f.pending), func(i, j int) { f.pending[i], f.pending[j] = f.pending[j], f.pending[i] })
	for _, o := range f.pending {
		f.Observe(o)
	}
	f.pending = nil
}

func (f *life) anno() map[string]string {
	if f.r.IntN(2) == 0 {
		return nil
	}
	return map[string]string{volume.AnnotationPool: pick(f.r, "P", "Q", "R"), volume.AnnotationAllocation: strconv.Itoa(f.r.IntN(6))}
}

// step is a random change, and perhaps a decision.
func (f *life) step() {
	r := f.r
	meta := func(ns, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(name + pick(r, "-1", "-2")), ResourceVersion: f.version()}
	}
	size := func() resource.Quantity { return *resource.NewQuantity(int64(r.IntN(60)), resource.BinarySI) }
	switch r.IntN(12) {
	case 0, 1:
		n := &corev1.Node{ObjectMeta: meta("", f.nodeName())}
		n.Labels = map[string]string{"host": n.Name}
		for _, k := range []string{"zone", "x", "y"} {
			if r.IntN(2) == 0 {
				n.Labels[k] = f.value(k)
			}
		}
		if r.IntN(8) == 0 {
			delete(n.Labels, "host")
		}
		f.change(n, r.IntN(5) == 0)
	case 2, 3, 4:
		v := &corev1.PersistentVolume{ObjectMeta: meta("", pick(r, "v1", "v2", "v3", "v4"))}
		v.Annotations = f.anno()
		v.Spec.StorageClassName = pick(r, "A", "B", "C", "")
		v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: size()}
		v.Spec.NodeAffinity = f.affinity()
		v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		v.Status.Phase = pick(r, corev1.VolumeAvailable, corev1.VolumeAvailable, corev1.VolumeReleased)
		if r.IntN(2) == 0 {
			c := pick(r, "c1", "c2", "c3")
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: c, UID: types.UID(pick(r, "", c+"-1", c+"-2"))}
		}
		if r.IntN(10) == 0 {
			v.DeletionTimestamp = new(metav1.Now())
		}
		f.change(v, r.IntN(4) == 0)
	case 5, 6, 7:
		c := &corev1.PersistentVolumeClaim{ObjectMeta: meta("default", pick(r, "c1", "c2", "c3"))}
		c.Spec.StorageClassName = new(map[string]string{"c1-1": "A", "c1-2": "B", "c2-1": "A", "c2-2": "A", "c3-1": "C", "c3-2": "A"}[string(c.UID)])
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size()}
		if r.IntN(2) == 0 {
			c.Annotations = map[string]string{volume.AnnSelectedNode: f.nodeName()}
		}
		f.change(c, r.IntN(5) == 0)
	case 8, 9, 10:
		o := &storagev1.CSIStorageCapacity{ObjectMeta: meta("ns", pick(r, "k1", "k2", "k3", "k4"))}
		o.StorageClassName = pick(r, "A", "B", "C")
		o.Annotations = f.anno()
		o.NodeTopology = f.topology()
		if r.IntN(6) != 0 {
			o.Capacity = new(size())
		}
		if r.IntN(4) == 0 {
			o.MaximumVolumeSize = new(size())
		}
		f.change(o, r.IntN(4) == 0)
	case 11:
		c := &storagev1.StorageClass{ObjectMeta: meta("", pick(r, "A", "B", "C")), Provisioner: pick(r, "d", "d2"), VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer), Parameters: map[string]string{"p": pick(r, "1", "2")}}
		f.change(c, r.IntN(5) == 0)
	}
	if r.IntN(4) == 0 {
		name := pick(r, "c1", "c2", "c3")
		if c := f.ClaimByKey("default/" + name); c != nil {
			plan := binding.BindPlan{Node: f.nodeName()}
			if v := f.Volume(pick(r, "v1", "v2", "v3", "v4")); v != nil && r.IntN(2) == 0 {
				plan.Binds = []binding.Bind{{Claim: "default/" + name, ClaimUID: string(c.UID), Volume: v.Name, VolumeUID: string(v.UID)}}
			} else {
				plan.Selects = []binding.Select{{Claim: "default/" + name, ClaimUID: string(c.UID)}}
			}
			err := f.Assume(plan, "pod")
			f.log = append(f.log, fmt.Sprint("assume ", plan, err))
			f.plans = append(f.plans, plan)
		}
	}
}

// answers are all that a snapshot says of some nodes.
type answers struct {
	Segments, Shelf map[string][]string
	Most            map[string]string
}

// look asks a snapshot for everything, by the informer's nodes and by others that
// are equal to them.
func look(s *Snapshot, nodes []*corev1.Node) answers {
	a := answers{map[string][]string{}, map[string][]string{}, map[string]string{}}
	for _, class := range []string{"A", "B", "C", ""} {
		m, ok := s.MostAvailable(&binding.Class{Name: class})
		a.Most[class] = fmt.Sprint(m, ok)
		for _, o := range nodes {
			for i, object := range []*corev1.Node{o, o.DeepCopy()} {
				n := s.Node(object)
				var seg, vols []string
				for _, sg := range s.Room(class).Segments(nil, &n) {
					seg = append(seg, fmt.Sprintf("%+v", *sg))
				}
				if sh := s.Shelf(&binding.Claim{Class: binding.Class{Name: class}}); sh != nil {
					sh.Ascend(&n, 10, taker(func(v *binding.Volume) bool {
						vols = append(vols, fmt.Sprintf("%s %s %d", v.Name, v.UID, v.Capacity))
						return true
					}))
				}
				slices.Sort(seg)
				slices.Sort(vols)
				a.Segments[fmt.Sprint(class, " ", o.Name, i)] = slices.Compact(seg)
				a.Shelf[fmt.Sprint(class, " ", o.Name, i)] = slices.Compact(vols)
			}
		}
	}
	return a
}

// sizesOf counts what the cache keeps, so that nothing is kept for ever. Label
// values are numbered in the order in which they come, and are not counted.
func sizesOf(c *Cache) map[string]int {
	g := 0
	for _, x := range c.ledger.places.atlas.grounds {
		if x.users > 0 {
			g++
		}
	}
	return map[string]int{
		"places": len(c.ledger.places.byID), "pools": len(c.ledger.pools), "holds": len(c.ledger.holds), "byClass": len(c.ledger.byClass), "byNode": len(c.ledger.byNode),
		"nodes": len(c.ledger.nodes), "gone": len(c.ledger.gone), "free": len(c.volumes.free.groups), "segments": len(c.ledger.segments.groups), "pairs": len(c.ledger.pairs),
		"reserved": len(c.volumes.reserved), "naming": len(c.naming), "volumeOf": len(c.ledger.volumesOf), "known": len(c.known), "ofClass": len(c.ledger.ofClass),
		"assumed": len(c.volumes.assumed), "rows": rowsOf(c), "grounds": g, "settlements": len(c.ledger.settlements), "deadlines": len(c.ledger.deadlines),
	}
}

func rowsOf(c *Cache) int {
	if c.ledger.places.atlas.rows == nil {
		return 0
	}
	return c.ledger.places.atlas.rows.size
}

// settle lets all that only time ends be over.
func (s *stores) settle() {
	for range 3 {
		s.clock.Step(time.Hour)
		s.mu.Lock()
		s.nextDeadline()
		s.mu.Unlock()
		s.clock.Step(time.Hour)
		s.expire()
	}
}

func (f *life) nodes() []*corev1.Node {
	var out []*corev1.Node
	for _, k := range slices.Sorted(maps.Keys(f.objs)) {
		if n, ok := f.objs[k].(*corev1.Node); ok {
			out = append(out, n)
		}
	}
	return out
}

// leaveGoneNodes removes the claims that are selected for a node that is gone: a
// new cache cannot know the labels that the node had.
func (f *life) leaveGoneNodes() {
	for _, k := range slices.Sorted(maps.Keys(f.objs)) {
		if c, ok := f.objs[k].(*corev1.PersistentVolumeClaim); ok {
			if n := c.Annotations[volume.AnnSelectedNode]; n != "" && f.Node(n) == nil {
				f.change(c, true)
			}
		}
	}
	f.flush()
}

// TestAgainstRebuilt: after any course of events, late ones and recreated objects
// among them, a cache says and keeps what a new one over the same objects does,
// and no snapshot has changed since it was taken.
func TestAgainstRebuilt(t *testing.T) {
	type past struct {
		snapshot *Snapshot
		nodes    []*corev1.Node
		said     answers
	}
	seeds.Rounds(t, 300, func(seed uint64, r *rand.Rand) {
		f := &life{stores: emptyStores(t), r: r, objs: map[string]any{}}
		var old []past
		for range 10 + r.IntN(60) {
			f.step()
			if r.IntN(4) == 0 {
				s := f.Snapshot().(*Snapshot)
				old = append(old, past{s, f.nodes(), look(s, f.nodes())})
			}
		}
		for _, p := range old {
			if d := cmp.Diff(p.said, look(p.snapshot, p.nodes)); d != "" {
				t.Fatalf("seed %d: an old snapshot changed (-then +now)\n%s", seed, d)
			}
		}
		f.flush()
		for _, p := range f.plans {
			f.Forget(p, "pod")
		}
		f.leaveGoneNodes()
		f.settle()
		rebuilt := emptyStores(t)
		for _, o := range f.objs {
			rebuilt.put(o)
		}
		rebuilt.Snapshot()
		rebuilt.settle()
		said := cmp.Diff(look(rebuilt.Snapshot().(*Snapshot), f.nodes()), look(f.Snapshot().(*Snapshot), f.nodes()))
		kept := cmp.Diff(sizesOf(rebuilt.Cache), sizesOf(f.Cache)) + cmp.Diff(rebuilt.volumes.reserved, f.volumes.reserved)
		if said+kept != "" {
			t.Errorf("seed %d: (-rebuilt +live)\n%s\n%s\n%s", seed, said, kept, lines(f.log))
		}
	})
}
