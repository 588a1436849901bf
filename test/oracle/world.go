package oracle

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const namespace = "default"

// world is one cluster and the pod that is asked about, as plain data.
type world struct {
	nodes       []*corev1.Node
	volumes     []*corev1.PersistentVolume
	claims      []*corev1.PersistentVolumeClaim
	classes     []*storagev1.StorageClass
	drivers     []*storagev1.CSIDriver
	capacities  []*storagev1.CSIStorageCapacity
	csiNodes    []*storagev1.CSINode
	attachments []*storagev1.VolumeAttachment
	// running are the pods on nodes.
	running []*corev1.Pod
	pod     *corev1.Pod

	// What went before the question.

	// limits are CSINodes as they were, before those of csiNodes.
	limits []*storagev1.CSINode
	// gaveBack are claims, by name, that were selected for a node before.
	gaveBack map[string]string
	// others are pods that were given a node before, and hold volumes in memory.
	others []other
	// stale are volumes and claims, by name, that are newer in the API than the
	// informers know.
	stale map[string]bool
	// evicted is a running pod that a dry run leaves out, by name; empty for none.
	evicted string
}

// other is a pod with one claim that Reserve gave a node.
type other struct {
	claim, node string
	// again: Reserve, Unreserve and Reserve; touched: what it holds has changed
	// since, in something that does not matter.
	again, touched bool
	// volume is what it holds; empty for a claim to be provisioned.
	volume string
}

func (o other) pod() *corev1.Pod {
	pod := makePod("q-" + o.claim)
	pod.Spec.Volumes = []corev1.Volume{claimVolume(o.claim)}
	return pod
}

// placed is the pod as its scheduler has it from then on.
func (o other) placed() *corev1.Pod {
	pod := o.pod()
	pod.Spec.NodeName = o.node
	return pod
}

// objects are all objects of the API.
func (w *world) objects() []runtime.Object {
	var out []runtime.Object
	out = append(out, list(w.nodes)...)
	out = append(out, list(w.classes)...)
	out = append(out, list(w.drivers)...)
	out = append(out, list(w.csiNodes)...)
	out = append(out, list(w.capacities)...)
	out = append(out, list(w.volumes)...)
	out = append(out, list(w.claims)...)
	out = append(out, list(w.attachments)...)
	out = append(out, list(w.running)...)
	return append(out, w.pod)
}

func list[T runtime.Object](in []T) []runtime.Object {
	out := make([]runtime.Object, 0, len(in))
	for _, o := range in {
		out = append(out, o)
	}
	return out
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	for _, c := range w.claims {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func (w *world) volume(name string) *corev1.PersistentVolume {
	for _, v := range w.volumes {
		if v.Name == name {
			return v
		}
	}
	return nil
}

func (w *world) class(name string) *storagev1.StorageClass {
	for _, c := range w.classes {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func (w *world) driver(name string) *storagev1.CSIDriver {
	for _, d := range w.drivers {
		if d.Name == name {
			return d
		}
	}
	return nil
}

func csiNodeOf(list []*storagev1.CSINode, name string) *storagev1.CSINode {
	for _, n := range list {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// String writes the world as YAML.
func (w *world) String() string {
	var b strings.Builder
	for _, o := range w.objects() {
		fmt.Fprintf(&b, "---\n%s", yamlOf(o))
	}
	for _, n := range w.limits {
		fmt.Fprintf(&b, "--- # before\n%s", yamlOf(n))
	}
	fmt.Fprintf(&b, "# gave back: %v, others: %+v, stale: %v, evicted: %q\n", w.gaveBack, w.others, w.stale, w.evicted)
	return b.String()
}

// yamlOf is the object as kubectl would apply it, without what says nothing.
func yamlOf(o runtime.Object) string {
	o = o.DeepCopyObject()
	version := "v1"
	switch o := o.(type) {
	case *corev1.Node:
		o.Status = corev1.NodeStatus{}
	case *storagev1.StorageClass, *storagev1.CSIDriver, *storagev1.CSIStorageCapacity, *storagev1.CSINode, *storagev1.VolumeAttachment:
		version = "storage.k8s.io/v1"
	}
	text, err := yaml.Marshal(o)
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")
	out := []string{"apiVersion: " + version, "kind: " + kind}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := range lines {
		if lines[i] == "status:" && kind == "Node" {
			break
		}
		// An empty selector of nodes says something; other empty things do not.
		if !strings.HasSuffix(lines[i], ": {}") || strings.HasPrefix(lines[i], "nodeTopology") {
			out = append(out, lines[i])
		}
	}
	return strings.Join(out, "\n") + "\n"
}
