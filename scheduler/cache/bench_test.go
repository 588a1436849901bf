package cache

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// size is a cluster of that many nodes, each with that many local volumes and
// one capacity object.
type size struct{ nodes, volumes int }

func (s size) String() string { return fmt.Sprintf("%dx%d", s.nodes, s.volumes) }

func hostLabels(name string) map[string]string {
	return map[string]string{
		"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
		"topology.kubernetes.io/zone": "z" + name[len(name)-1:], "node.kubernetes.io/instance-type": "m", "pool": "general",
	}
}

func localVolume(name, host string, gib int) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "local", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(fmt.Sprintf("%dGi", gib))},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{host}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
}

func localClaim(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}},
		},
	}
}

// manyNodes fills a cache, and returns the nodes as a cycle has them.
func manyNodes(b *testing.B, s size) (*stores, []*corev1.Node) {
	b.Helper()
	c := newStores(b)
	mode := ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	c.put(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: volume.NoProvisioner, VolumeBindingMode: mode})
	c.put(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "dynamic"}, Provisioner: "d", VolumeBindingMode: mode})
	nodes := make([]*corev1.Node, 0, s.nodes)
	for i := range s.nodes {
		name := fmt.Sprintf("node-%05d", i)
		// The scheduler's snapshot has the informer's objects.
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: hostLabels(name)}})
		c.put(nodes[i])
		for v := range s.volumes {
			c.put(localVolume(fmt.Sprintf("pv-%05d-%d", i, v), name, 1+v))
		}
		o := capacityObject("1", numbers("P"+name, "5"))
		o.Name, o.StorageClassName, o.NodeTopology = name, "dynamic", &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/hostname": name}}
		o.Capacity = new(resource.MustParse("100Gi"))
		c.put(o)
	}
	return c, nodes
}

// pass judges every node, on one goroutine.
func pass(b *testing.B, c *stores, nodes []*corev1.Node, pvc *corev1.PersistentVolumeClaim, want int) {
	b.Helper()
	j, node := new(binding.Judge), binding.Node{}
	c.Snapshot() // reads the stores, once
	b.ReportAllocs()
	for b.Loop() {
		q, err := c.Ask([]*corev1.PersistentVolumeClaim{pvc})
		if err != nil {
			b.Fatal(err)
		}
		found := 0
		for i := range nodes {
			node = q.Node(nodes[i])
			if j.Find(q.Question, &node).OK() {
				found++
			}
		}
		if found != want {
			b.Fatalf("%d nodes pass, want %d", found, want)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(nodes)), "ns/node")
}

var sizes = []size{{500, 4}, {2000, 4}, {5000, 4}, {20000, 4}}

// BenchmarkStatic: one pod with one claim for a local volume.
func BenchmarkStatic(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.String(), func(b *testing.B) {
			c, nodes := manyNodes(b, s)
			pvc := localClaim("c", "local")
			c.set(pvc)
			pass(b, c, nodes, pvc, s.nodes)
		})
	}
}

// BenchmarkDynamic: one pod with one claim to provision from published capacity.
func BenchmarkDynamic(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.String(), func(b *testing.B) {
			c, nodes := manyNodes(b, size{s.nodes, 0})
			pvc := localClaim("c", "dynamic")
			c.set(pvc)
			pass(b, c, nodes, pvc, s.nodes)
		})
	}
}

// BenchmarkRefused: the same where no node has room, with its reasons.
func BenchmarkRefused(b *testing.B) {
	c, nodes := manyNodes(b, size{5000, 0})
	pvc := localClaim("c", "dynamic")
	pvc.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("200Gi")
	c.set(pvc)
	pass(b, c, nodes, pvc, 0)
}

// BenchmarkBound: one pod whose claim is bound to a local volume.
func BenchmarkBound(b *testing.B) {
	c, nodes := manyNodes(b, size{5000, 1})
	pvc := localClaim("c", "local")
	pvc.Spec.VolumeName = "pv-00007-0"
	pvc.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	c.set(pvc)
	pass(b, c, nodes, pvc, 1)
}

// BenchmarkEvents is what the indexes cost an event, with a snapshot taken after
// each, as in a scheduler that places a pod between two events.
func BenchmarkEvents(b *testing.B) {
	c, _ := manyNodes(b, size{5000, 4})
	c.Snapshot()
	pv, capacity := localVolume("pv-00042-1", "node-00042", 2), capacityObject("2", numbers("Pnode-00042", "6"))
	capacity.Name, capacity.StorageClassName = "node-00042", "dynamic"
	capacity.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/hostname": "node-00042"}}
	for name, event := range map[string]func(){
		"volume":   func() { c.set(pv) },
		"capacity": func() { c.set(capacity) },
		"claim":    func() { c.set(localClaim("x", "local")) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				event()
				c.Snapshot()
			}
		})
	}
}

// BenchmarkOccupancy: what a node has attached, asked again (remembered) and
// after a pod came (counted).
func BenchmarkOccupancy(b *testing.B) {
	c, _ := manyNodes(b, size{1, 0})
	var pods []*corev1.Pod
	for i := range 50 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i)}}
		for v := range 2 {
			name := fmt.Sprintf("c%d-%d", i, v)
			c.set(localClaim(name, "dynamic"))
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}})
		}
		pods = append(pods, pod)
	}
	t := Tenants{Node: "node-00000", Pods: func(yield func(*corev1.Pod) bool) {
		for _, p := range pods {
			if !yield(p) {
				return
			}
		}
	}}
	for name, step := range map[string]int64{"remembered": 0, "counted": 1} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				t.Generation += step
				if used := c.Occupancy(t).Used("d"); used != 100 {
					b.Fatalf("%d volumes, want 100", used)
				}
			}
		})
	}
}

// TestJudgingAllocatesNothing: what a pass over the nodes allocates does not grow
// with them.
func TestJudgingAllocatesNothing(t *testing.T) {
	c := newStores(t)
	o := capacityObject("1", numbers("P", "5"))
	c.set(o)
	pv := localVolume("pv", "n1", 2)
	pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key = "host"
	c.set(pv)
	c.set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: volume.NoProvisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})
	static, dynamic := localClaim("s", "local"), localClaim("d", "A")
	dynamic.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("30")
	c.set(static)
	c.set(dynamic)
	for name, claims := range map[string][]*corev1.PersistentVolumeClaim{"static": {static}, "dynamic": {dynamic}, "both": {static, dynamic}} {
		q, err := c.Ask(claims)
		if err != nil {
			t.Fatal(err)
		}
		j, node := new(binding.Judge), binding.Node{Name: "n1", Labels: nodeLabels("n1")}
		if v := j.Find(q.Question, &node); !v.OK() {
			t.Fatalf("%s: refused: %v", name, v.Refusals)
		}
		if n := testing.AllocsPerRun(100, func() { j.Find(q.Question, &node) }); n > 0 {
			t.Errorf("%s: judging a node allocates %v times", name, n)
		}
	}
}
