package oracle

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/volume"
)

// event is one change of a world.
type event struct {
	resource      fwk.EventResource
	action        fwk.ActionType
	before, after runtime.Object
	// world is what it is then.
	world *world
}

func (e event) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %v\n", e.resource, e.action)
	for _, o := range []runtime.Object{e.before, e.after} {
		if o != nil {
			text.WriteString("---\n" + yamlOf(o))
		}
	}
	return text.String()
}

// change is a random event that may help somebody.
func (g *generator) change() (event, bool) {
	w := g.w.clone()
	e := event{world: w, action: fwk.Update}
	switch g.IntN(9) {
	case 0:
		return e, g.changeCapacity(&e)
	case 1:
		return e, g.changeVolume(&e)
	case 2:
		return e, g.changeClaim(&e)
	case 3:
		return e, g.changeNode(&e)
	case 4:
		return e, g.changeCSINode(&e)
	case 5:
		e.resource = fwk.CSIDriver
		return e, swap(g, &e, w.drivers, func(d *storagev1.CSIDriver) {
			d.Spec.StorageCapacity, d.Spec.PreventPodSchedulingIfMissing = nil, nil
		})
	case 6:
		e.resource = fwk.StorageClass
		return e, swap(g, &e, w.classes, func(sc *storagev1.StorageClass) { sc.AllowedTopologies = nil })
	case 7:
		e.resource = fwk.VolumeAttachment
		return e, leave(g, &e, &w.attachments)
	}
	e.resource = fwk.AssignedPod
	return e, leave(g, &e, &w.running)
}

// swap changes one of the objects.
func swap[T interface {
	runtime.Object
	DeepCopy() T
}](g *generator, e *event, of []T, change func(T)) bool {
	if len(of) == 0 {
		return false
	}
	i := g.IntN(len(of))
	before := of[i]
	of[i] = before.DeepCopy()
	change(of[i])
	e.before, e.after = before, of[i]
	return true
}

// leave deletes one of the objects.
func leave[T runtime.Object](g *generator, e *event, of *[]T) bool {
	if len(*of) == 0 {
		return false
	}
	i := g.IntN(len(*of))
	e.action, e.before = fwk.Delete, (*of)[i]
	*of = slices.Delete(*of, i, i+1)
	return true
}

func (g *generator) changeCapacity(e *event) bool {
	e.resource = fwk.CSIStorageCapacity
	if g.one(4) {
		return leave(g, e, &e.world.capacities)
	}
	return swap(g, e, e.world.capacities, func(o *storagev1.CSIStorageCapacity) {
		switch g.IntN(3) {
		case 0:
			o.NodeTopology = g.reach(pick(g, g.w.nodes...))
		default:
			g.publish(o)
		}
		if o.Annotations != nil && g.one(2) {
			o.Annotations = map[string]string{volume.AnnotationPool: poolOf(o), volume.AnnotationAllocation: "9"}
		}
	})
}

func (g *generator) changeVolume(e *event) bool {
	e.resource = fwk.PersistentVolume
	switch g.IntN(3) {
	case 0:
		pv := g.pv("new", g.classOfVolumes())
		e.action, e.after = fwk.Add, pv
		e.world.volumes = append(e.world.volumes, pv)
		return true
	case 1:
		return leave(g, e, &e.world.volumes)
	}
	return swap(g, e, e.world.volumes, func(pv *corev1.PersistentVolume) {
		if !strings.HasPrefix(pv.Name, "bound-") {
			pv.Spec.ClaimRef, pv.Status.Phase = nil, corev1.VolumeAvailable
		}
	})
}

func (g *generator) changeClaim(e *event) bool {
	e.resource = fwk.PersistentVolumeClaim
	if g.one(3) {
		// A claim in use stays: its finalizer holds it.
		return leave(g, e, &e.world.claims) && !slices.ContainsFunc(e.world.running, func(p *corev1.Pod) bool {
			return slices.ContainsFunc(refsOf(p), func(r ref) bool { return r.name == accessor(e.before).GetName() })
		})
	}
	return swap(g, e, e.world.claims, func(c *corev1.PersistentVolumeClaim) {
		if c.Spec.VolumeName == "" {
			delete(c.Annotations, volume.AnnSelectedNode)
		}
	})
}

func (g *generator) changeNode(e *event) bool {
	e.resource = fwk.Node
	if g.one(2) {
		e.action = fwk.UpdateNodeTaint
		return swap(g, e, e.world.nodes, func(n *corev1.Node) { n.Spec.Taints = nil })
	}
	e.action = fwk.UpdateNodeLabel
	return swap(g, e, e.world.nodes, func(n *corev1.Node) {
		n.Labels[volume.LabelZone], n.Labels["rank"] = pick(g, "z1", "z2"), pick(g, "0", "1", "2")
	})
}

// changeCSINode only gives: what is taken is remembered.
func (g *generator) changeCSINode(e *event) bool {
	e.resource = fwk.CSINode
	return swap(g, e, e.world.csiNodes, func(n *storagev1.CSINode) {
		for i := range n.Spec.Drivers {
			if a := n.Spec.Drivers[i].Allocatable; a != nil && a.Count != nil {
				a.Count = new(*a.Count + int32(g.IntN(3)))
			}
		}
		for _, d := range []string{trackedDriver, otherDriver, ebsDriver} {
			if g.one(2) && !slices.ContainsFunc(n.Spec.Drivers, func(is storagev1.CSINodeDriver) bool { return is.Name == d }) {
				n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: d, NodeID: n.Name})
			}
		}
	})
}

// wakes asks the world's question of a side, lets the event happen, and returns
// whether the side would try the pod again.
func wakes(ctx context.Context, w *world, s side, e event) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := newRig(ctx, w, s.make)
	if err != nil {
		return false, err
	}
	r.ask(w, "") //nolint:contextcheck // bind gives a context that is over
	before, after := e.before, e.after
	if after != nil {
		after = r.put(after)
	} else {
		r.delete(before)
	}
	for _, h := range r.hints {
		if h.Event.Resource != e.resource || h.Event.ActionType&e.action == 0 {
			continue
		}
		if h.QueueingHintFn == nil {
			return true, nil
		}
		// An error queues the pod, as in the scheduling queue.
		if hint, err := h.QueueingHintFn(klog.FromContext(ctx), w.pod, object(before), object(after)); hint == fwk.Queue || err != nil {
			return true, nil
		}
	}
	return false, nil
}

// object is nil without a type for no object, as hints expect it.
func object(o runtime.Object) any {
	if o == nil {
		return nil
	}
	return o
}

// gained are the nodes that pass for sure after the event, and did not before.
func gained(before, after possible) []string {
	passes := func(words []string, all bool) bool {
		fails := func(s string) bool { return !strings.HasPrefix(s, "Success") }
		if all {
			return len(words) > 0 && !slices.ContainsFunc(words, fails)
		}
		return slices.ContainsFunc(words, func(s string) bool { return !fails(s) })
	}
	var out []string
	for node, words := range after.nodes {
		if passes(words, true) && !passes(before.nodes[node], false) {
			out = append(out, node)
		}
	}
	return out
}
