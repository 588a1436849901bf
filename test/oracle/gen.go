package oracle

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/volume"
)

const (
	trackedDriver = "tracked.example"
	otherDriver   = "other.example"
	ebsPlugin     = "kubernetes.io/aws-ebs"
	ebsDriver     = "ebs.csi.aws.com"
	pdPlugin      = "kubernetes.io/gce-pd"
	pdDriver      = "pd.csi.storage.gke.io"
)

// generator makes worlds.
type generator struct {
	*rand.Rand
	w *world
	// prebound are claims that have a volume reserved: one each, as with two
	// upstream takes any.
	prebound map[string]bool
	// about is what most of the world is about, so that rare meetings are not.
	about theme
}

type theme int

const (
	aboutAll theme = iota
	aboutCapacity
	aboutVolumes
	aboutAttaching
	themes
)

func generate(r *rand.Rand) *world {
	g := &generator{Rand: r, prebound: map[string]bool{}, w: &world{gaveBack: map[string]string{}, stale: map[string]bool{}}}
	g.about = theme(g.IntN(int(themes)))
	g.makeNodes()
	g.makeClasses()
	g.makeCapacities()
	g.makeClaims()
	g.makeVolumes()
	g.makeAttachments()
	g.makePast()
	return g.w
}

func pick[T any](g *generator, s ...T) T { return s[g.IntN(len(s))] }

// some is a number below n, and at least so many in a world about it.
func (g *generator) some(about theme, least, n int) int {
	if g.about == about {
		return max(least, g.IntN(n+least))
	}
	return g.IntN(n)
}

func (g *generator) one(in int) bool { return g.IntN(in) == 0 }

func (g *generator) node() string { return pick(g, g.w.nodes...).Name }

func (g *generator) size() resource.Quantity {
	if g.about == aboutVolumes {
		return gi(1 + g.IntN(3))
	}
	return gi(1 + g.IntN(5))
}

// odd is for what keeps most volumes from most claims: rarer where a world is
// about what they do together.
func (g *generator) odd(in int) bool {
	if g.about == aboutVolumes {
		in *= 6
	}
	return g.one(in)
}

func gi(n int) resource.Quantity { return resource.MustParse(strconv.Itoa(n) + "Gi") }

func (g *generator) makeNodes() {
	for i := range 2 + g.IntN(2) {
		name := fmt.Sprintf("n%d", i+1)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{
			volume.LabelHostname: name, volume.LabelZone: pick(g, "z1", "z2"), "rank": strconv.Itoa(g.IntN(3)),
		}}}
		if g.one(3) {
			n.Labels["topology.ebs.csi.aws.com/zone"] = pick(g, "z1", "z2")
		}
		if g.one(5) {
			n.Labels["rank"] = "high"
		}
		if g.one(10) {
			n.Spec.Taints = []corev1.Taint{{Key: pick(g, trackedDriver, otherDriver, ebsDriver) + "/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}}
		}
		g.w.nodes = append(g.w.nodes, n)
		if !g.one(4) {
			g.w.csiNodes = append(g.w.csiNodes, g.csiNode(name))
		}
	}
}

func (g *generator) csiNode(name string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	switch g.IntN(3) {
	case 0:
		n.Annotations = map[string]string{volume.AnnMigratedPlugins: ebsPlugin + "," + pdPlugin}
	case 1:
		n.Annotations = map[string]string{volume.AnnMigratedPlugins: pick(g, ebsPlugin, pdPlugin)}
	}
	for _, d := range []string{trackedDriver, otherDriver, ebsDriver, pdDriver} {
		if g.one(5) {
			continue
		}
		driver := storagev1.CSINodeDriver{Name: d, NodeID: name}
		if !g.one(3) {
			driver.Allocatable = &storagev1.VolumeNodeResources{}
			if !g.one(8) {
				driver.Allocatable.Count = new(g.limit())
			}
		}
		n.Spec.Drivers = append(n.Spec.Drivers, driver)
	}
	return n
}

// limit is small where attaching is what a world is about.
func (g *generator) limit() int32 {
	if g.about == aboutAttaching {
		return int32(1 + g.IntN(3))
	}
	return int32(g.IntN(5))
}

func (g *generator) makeClasses() {
	for name, provisioner := range map[string]string{
		"tracked": trackedDriver, "twin": trackedDriver, "dynamic": trackedDriver, "untracked": otherDriver, "local": volume.NoProvisioner, "ebs": ebsPlugin, "now": trackedDriver,
	} {
		sc := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
		if name == "now" {
			sc.VolumeBindingMode = new(storagev1.VolumeBindingImmediate)
		}
		g.w.classes = append(g.w.classes, sc)
	}
	sortByName(g.w.classes)
	for _, sc := range g.w.classes {
		if sc.Name != "local" && g.one(6) {
			sc.AllowedTopologies = g.topologies()
		}
	}
	for _, d := range []string{trackedDriver, otherDriver, ebsDriver} {
		if d == otherDriver && g.one(2) {
			continue
		}
		driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: d}}
		if d == trackedDriver && !g.one(8) {
			driver.Spec.StorageCapacity = new(true)
		}
		if g.one(8) {
			driver.Spec.PreventPodSchedulingIfMissing = new(true)
		}
		g.w.drivers = append(g.w.drivers, driver)
	}
}

func (g *generator) topologies() []corev1.TopologySelectorTerm {
	terms := 1 + g.IntN(2)
	out := make([]corev1.TopologySelectorTerm, 0, terms)
	for range terms {
		term := corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: volume.LabelZone, Values: []string{pick(g, "z1", "z2")}}}}
		if g.one(3) {
			term.MatchLabelExpressions = append(term.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{Key: volume.LabelHostname, Values: []string{g.node(), g.node()}})
		}
		out = append(out, term)
	}
	return out
}

// makeCapacities: objects by node or by zone, with and without numbers, some of
// two classes on one pool.
func (g *generator) makeCapacities() {
	for _, class := range []string{"tracked", "twin", "dynamic"} {
		for _, n := range g.w.nodes {
			for i := range g.some(aboutCapacity, 1, 3) {
				o := &storagev1.CSIStorageCapacity{
					ObjectMeta:       metav1.ObjectMeta{Namespace: "kube-system", Name: fmt.Sprintf("%s-%s-%d", class, n.Name, i)},
					StorageClassName: class, NodeTopology: g.reach(n),
				}
				g.publish(o)
				if g.one(2) {
					o.Annotations = map[string]string{volume.AnnotationPool: fmt.Sprintf("pool-%s-%d", n.Name, i), volume.AnnotationAllocation: strconv.Itoa(1 + g.IntN(3))}
				}
				g.w.capacities = append(g.w.capacities, o)
			}
		}
	}
}

func (g *generator) reach(n *corev1.Node) *metav1.LabelSelector {
	switch g.IntN(10) {
	case 0:
		return &metav1.LabelSelector{MatchLabels: map[string]string{volume.LabelZone: n.Labels[volume.LabelZone]}}
	case 1:
		return &metav1.LabelSelector{}
	case 2:
		return nil
	case 3:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: volume.LabelHostname, Operator: metav1.LabelSelectorOpNotIn, Values: []string{n.Name}}}}
	case 4:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rank", Operator: metav1.LabelSelectorOpExists}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{volume.LabelHostname: n.Name}}
}

func (g *generator) publish(o *storagev1.CSIStorageCapacity) {
	capacity, most := gi(1+g.IntN(8)), gi(1+g.IntN(8))
	switch g.IntN(8) {
	case 0:
		if g.about == aboutCapacity {
			o.Capacity = &capacity
		}
	case 1:
		o.MaximumVolumeSize = &most
	case 2, 3:
		o.Capacity, o.MaximumVolumeSize = &capacity, &most
	default:
		o.Capacity = &capacity
	}
}
