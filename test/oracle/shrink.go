package oracle

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// clone copies the lists; the objects in them are never changed.
func (w *world) clone() *world {
	c := *w
	c.nodes, c.volumes, c.claims, c.classes = slices.Clone(w.nodes), slices.Clone(w.volumes), slices.Clone(w.claims), slices.Clone(w.classes)
	c.drivers, c.capacities, c.csiNodes = slices.Clone(w.drivers), slices.Clone(w.capacities), slices.Clone(w.csiNodes)
	c.attachments, c.running, c.limits = slices.Clone(w.attachments), slices.Clone(w.running), slices.Clone(w.limits)
	c.gaveBack, c.stale, c.others = maps.Clone(w.gaveBack), maps.Clone(w.stale), slices.Clone(w.others)
	return &c
}

// shrink makes the world as small as it can while still holds: objects go first,
// then what they say.
func shrink(w *world, still func(*world) bool) *world {
	for again := true; again; {
		again = false
		for _, step := range []func(*world) []*world{fewer, plainer} {
			for i := 0; ; i++ {
				// Each time anew, as the world is another after a success.
				options := step(w)
				if i >= len(options) {
					break
				}
				if still(options[i]) {
					w, again = options[i], true
					i--
				}
			}
		}
	}
	return w
}

// fewer are the worlds with one thing less.
func fewer(w *world) []*world {
	var out []*world
	less := func(change func(*world)) {
		c := w.clone()
		change(c)
		out = append(out, c)
	}
	drop(w.running, func(i int) { less(func(c *world) { c.running = slices.Delete(c.running, i, i+1) }) })
	drop(w.attachments, func(i int) { less(func(c *world) { c.attachments = slices.Delete(c.attachments, i, i+1) }) })
	drop(w.capacities, func(i int) { less(func(c *world) { c.capacities = slices.Delete(c.capacities, i, i+1) }) })
	drop(w.volumes, func(i int) { less(func(c *world) { c.volumes = slices.Delete(c.volumes, i, i+1) }) })
	drop(w.limits, func(i int) { less(func(c *world) { c.limits = slices.Delete(c.limits, i, i+1) }) })
	drop(w.csiNodes, func(i int) { less(func(c *world) { c.csiNodes = slices.Delete(c.csiNodes, i, i+1) }) })
	drop(w.drivers, func(i int) { less(func(c *world) { c.drivers = slices.Delete(c.drivers, i, i+1) }) })
	for _, name := range slices.Sorted(maps.Keys(w.gaveBack)) {
		less(func(c *world) { delete(c.gaveBack, name) })
	}
	for _, name := range slices.Sorted(maps.Keys(w.stale)) {
		less(func(c *world) { delete(c.stale, name) })
	}
	drop(w.others, func(i int) {
		less(func(c *world) { c.others = slices.Delete(c.others, i, i+1) })
		if o := w.others[i]; o.again || o.touched {
			o.again, o.touched = false, false
			less(func(c *world) { c.others[i] = o })
		}
	})
	drop(w.pod.Spec.Volumes, func(i int) {
		less(func(c *world) {
			c.pod = c.pod.DeepCopy()
			c.pod.Spec.Volumes = slices.Delete(c.pod.Spec.Volumes, i, i+1)
		})
	})
	drop(w.claims, func(i int) {
		if !w.uses(w.claims[i].Name) {
			less(func(c *world) { c.claims = slices.Delete(c.claims, i, i+1) })
		}
	})
	drop(w.classes, func(i int) {
		if !slices.ContainsFunc(w.claims, func(c *corev1.PersistentVolumeClaim) bool { return className(c) == w.classes[i].Name }) {
			less(func(c *world) { c.classes = slices.Delete(c.classes, i, i+1) })
		}
	})
	drop(w.nodes, func(i int) {
		if len(w.nodes) > 1 && !w.stands(w.nodes[i].Name) {
			less(func(c *world) { c.nodes = slices.Delete(c.nodes, i, i+1) })
		}
	})
	return out
}

func drop[T any](list []T, one func(i int)) {
	for i := range list {
		one(i)
	}
}

// uses reports whether a pod or the past names the claim: without it they would
// be another case.
func (w *world) uses(claim string) bool {
	if w.gaveBack[claim] != "" || slices.ContainsFunc(w.others, func(o other) bool { return o.claim == claim }) {
		return true
	}
	return slices.ContainsFunc(append(slices.Clone(w.running), w.pod), func(p *corev1.Pod) bool {
		return slices.ContainsFunc(refsOf(p), func(r ref) bool { return r.name == claim })
	})
}

// stands reports whether the past or a pod needs the node.
func (w *world) stands(node string) bool {
	if slices.Contains(slices.Collect(maps.Values(w.gaveBack)), node) || slices.ContainsFunc(w.others, func(o other) bool { return o.node == node }) {
		return true
	}
	return slices.ContainsFunc(w.running, func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
}

// plainer are the worlds in which one object says less.
func plainer(w *world) []*world {
	var out []*world
	for i, n := range w.nodes {
		simpler(n, func(n *corev1.Node) { n.Spec.Taints = nil }, func(n *corev1.Node) {
			c := w.clone()
			c.nodes[i] = n
			out = append(out, c)
		})
		for key := range n.Labels {
			simpler(n, func(n *corev1.Node) { delete(n.Labels, key) }, func(n *corev1.Node) {
				c := w.clone()
				c.nodes[i] = n
				out = append(out, c)
			})
		}
	}
	for i, pv := range w.volumes {
		for _, change := range plainVolumes() {
			simpler(pv, change, func(pv *corev1.PersistentVolume) {
				c := w.clone()
				c.volumes[i] = pv
				out = append(out, c)
			})
		}
	}
	for i, pvc := range w.claims {
		for _, change := range plainClaims() {
			simpler(pvc, change, func(pvc *corev1.PersistentVolumeClaim) {
				c := w.clone()
				c.claims[i] = pvc
				out = append(out, c)
			})
		}
	}
	for i, sc := range w.classes {
		simpler(sc, func(sc *storagev1.StorageClass) { sc.AllowedTopologies = nil }, func(sc *storagev1.StorageClass) {
			c := w.clone()
			c.classes[i] = sc
			out = append(out, c)
		})
	}
	for i, o := range w.capacities {
		for _, change := range []func(*storagev1.CSIStorageCapacity){
			func(o *storagev1.CSIStorageCapacity) { o.Annotations = nil }, func(o *storagev1.CSIStorageCapacity) { o.MaximumVolumeSize = nil }, func(o *storagev1.CSIStorageCapacity) { o.Capacity = nil },
		} {
			simpler(o, change, func(o *storagev1.CSIStorageCapacity) {
				c := w.clone()
				c.capacities[i] = o
				out = append(out, c)
			})
		}
	}
	return out
}

func plainVolumes() []func(*corev1.PersistentVolume) {
	return []func(*corev1.PersistentVolume){
		func(pv *corev1.PersistentVolume) { pv.Annotations = nil },
		func(pv *corev1.PersistentVolume) { pv.Labels = nil },
		func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = nil },
		func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = nil },
		func(pv *corev1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = nil },
		func(pv *corev1.PersistentVolume) { pv.Spec.AccessModes = pv.Spec.AccessModes[:1] },
		func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil },
		func(pv *corev1.PersistentVolume) {
			if pv.Spec.NodeAffinity != nil && pv.Spec.NodeAffinity.Required != nil && len(pv.Spec.NodeAffinity.Required.NodeSelectorTerms) > 1 {
				pv.Spec.NodeAffinity.Required.NodeSelectorTerms = pv.Spec.NodeAffinity.Required.NodeSelectorTerms[:1]
			}
		},
	}
}

func plainClaims() []func(*corev1.PersistentVolumeClaim) {
	return []func(*corev1.PersistentVolumeClaim){
		func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil },
		func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = nil },
		func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = nil },
		func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = nil },
		func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource, c.Spec.DataSourceRef = nil, nil },
		func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = c.Spec.AccessModes[:1] },
		func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = nil },
	}
}

// simpler gives the object changed, where that makes it another.
func simpler[T interface {
	runtime.Object
	DeepCopy() T
}](o T, change, give func(T)) {
	c := o.DeepCopy()
	change(c)
	if a, b := yamlOf(o), yamlOf(c); len(b) < len(a) {
		give(c)
	}
}
