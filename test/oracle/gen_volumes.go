package oracle

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/volume"
)

// pv makes a volume, mostly free.
func (g *generator) pv(name, class string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"color": pick(g, "red", "blue")}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, NodeAffinity: g.affinity(),
			Capacity: corev1.ResourceList{corev1.ResourceStorage: g.size()},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	driver := map[string]string{"untracked": otherDriver}[class]
	if driver == "" {
		driver = trackedDriver
	}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "handle-" + name}
	switch {
	case class == "ebs":
		pv.Spec.CSI = nil
		pv.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-" + strconv.Itoa(g.IntN(4))}
	case g.one(12):
		pv.Spec.CSI = nil
		pv.Spec.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: "pd-" + name}
		if pv.Labels[volume.LabelZone] == "" && !g.one(4) {
			pv.Labels[volume.LabelZone] = "z1"
		}
	case g.one(11):
		pv.Spec.CSI = nil
		pv.Spec.Local = &corev1.LocalVolumeSource{Path: "/x"}
	}
	if g.odd(8) {
		pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	}
	if g.odd(8) {
		pv.Spec.VolumeAttributesClassName = new("gold")
	}
	if g.one(3) {
		pv.Spec.AccessModes = append(pv.Spec.AccessModes, corev1.ReadOnlyMany)
	}
	if g.one(3) {
		n := g.node()
		pv.Annotations = map[string]string{volume.AnnotationPool: fmt.Sprintf("pool-%s-%d", n, g.IntN(2)), volume.AnnotationAllocation: strconv.Itoa(1 + g.IntN(4))}
	}
	return pv
}

// makeVolumes makes free, reserved, released and dying volumes.
func (g *generator) makeVolumes() {
	for i := range g.some(aboutVolumes, 3, 6) {
		pv := g.pv(fmt.Sprintf("pv%d", i), g.classOfVolumes())
		if g.one(10) {
			pv.Status.Phase = corev1.VolumeReleased
		}
		if g.one(15) {
			pv.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
			pv.Finalizers = []string{"kubernetes.io/pv-protection"}
		}
		if g.odd(4) && len(g.w.claims) > 0 {
			g.prebind(pv)
		}
		g.w.volumes = append(g.w.volumes, pv)
	}
}

func (g *generator) classOfVolumes() string {
	if g.about == aboutVolumes {
		return "local"
	}
	return pick(g, "local", "local", "local", "tracked", "untracked")
}

func (g *generator) prebind(pv *corev1.PersistentVolume) {
	c := pick(g, g.w.claims...)
	if g.prebound[c.Name] || c.Spec.VolumeName != "" {
		return
	}
	g.prebound[c.Name] = true
	if !g.one(4) {
		pv.Spec.StorageClassName = *c.Spec.StorageClassName
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name}
	switch g.IntN(3) {
	case 0:
		pv.Spec.ClaimRef.UID = "another"
	case 1:
		pv.Spec.ClaimRef.UID = c.UID
	}
}

func (g *generator) affinity() *corev1.VolumeNodeAffinity {
	if g.about == aboutAttaching && !g.one(4) || g.about == aboutVolumes && g.one(3) {
		return nil
	}
	switch g.IntN(10) {
	case 0:
		return nil
	case 1:
		return &corev1.VolumeNodeAffinity{}
	}
	s := &corev1.NodeSelector{}
	for range 1 + g.IntN(2) {
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, g.term())
	}
	return &corev1.VolumeNodeAffinity{Required: s}
}

func (g *generator) term() corev1.NodeSelectorTerm {
	var t corev1.NodeSelectorTerm
	if g.one(30) {
		return t
	}
	if g.one(6) {
		t.MatchFields = []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: pick(g, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{g.node()}}}
		if g.one(2) {
			return t
		}
	}
	for range 1 + g.IntN(2) {
		t.MatchExpressions = append(t.MatchExpressions, g.requirement())
	}
	return t
}

func (g *generator) requirement() corev1.NodeSelectorRequirement {
	is := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	switch g.IntN(10) {
	case 0:
		return is(volume.LabelHostname, corev1.NodeSelectorOpNotIn, g.node())
	case 1:
		return is(volume.LabelZone, corev1.NodeSelectorOpIn, pick(g, "z1", "z2"))
	case 2:
		return is("rank", corev1.NodeSelectorOpGt, pick(g, "0", "1"))
	case 3:
		return is("rank", corev1.NodeSelectorOpLt, pick(g, "1", "2"))
	case 4:
		return is("absent", corev1.NodeSelectorOpDoesNotExist)
	case 5:
		return is("topology.ebs.csi.aws.com/zone", corev1.NodeSelectorOpExists)
	case 6:
		if g.one(5) {
			return is("rank", corev1.NodeSelectorOpGt, "many")
		}
	}
	return is(volume.LabelHostname, corev1.NodeSelectorOpIn, g.node(), g.node())
}

// makeAttachments: of claims' volumes, of volumes that are gone, inline ones.
func (g *generator) makeAttachments() {
	for i := range g.some(aboutAttaching, 3, 4) {
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("va%d", i)}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: pick(g, trackedDriver, otherDriver, ebsDriver), NodeName: g.node(),
		}}
		used := g.usedVolume(va)
		switch {
		case g.about == aboutAttaching && used != nil && !g.one(4):
			g.attach(va, used)
		case g.one(8):
			va.Spec.Source.InlineVolumeSpec = &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: va.Spec.Attacher, VolumeHandle: "vol-" + strconv.Itoa(g.IntN(3))},
			}}
		case g.one(8) || len(g.w.volumes) == 0:
			va.Spec.Source.PersistentVolumeName = new("gone-" + strconv.Itoa(g.IntN(2)))
		default:
			g.attach(va, pick(g, g.w.volumes...))
		}
		g.w.attachments = append(g.w.attachments, va)
	}
}

func (g *generator) attach(va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume) {
	va.Spec.Source.PersistentVolumeName = new(pv.Name)
	if driver, _ := driverOfVolume(pv); driver != "" {
		va.Spec.Attacher = driver
	}
}

// usedVolume moves the attachment to the node of a running pod and returns the
// pod's volume, nil for none.
func (g *generator) usedVolume(va *storagev1.VolumeAttachment) *corev1.PersistentVolume {
	if len(g.w.running) == 0 {
		return nil
	}
	p := pick(g, g.w.running...)
	for _, r := range refsOf(p) {
		if c := g.w.claim(r.name); c != nil && g.w.volume(c.Spec.VolumeName) != nil {
			va.Spec.NodeName = p.Spec.NodeName
			return g.w.volume(c.Spec.VolumeName)
		}
	}
	return nil
}

// makePast is what happened before the question.
func (g *generator) makePast() {
	w := g.w
	for _, n := range w.nodes {
		if g.one(8) {
			w.limits = append(w.limits, g.csiNode(n.Name))
		}
	}
	for _, c := range w.claims {
		free := c.Spec.VolumeName == "" && c.DeletionTimestamp == nil && c.Status.Phase == corev1.ClaimPending && len(c.OwnerReferences) == 0 && c.Annotations[volume.AnnSelectedNode] == ""
		switch {
		case !free:
		case className(c) == "dynamic" && g.one(6):
			w.gaveBack[c.Name] = g.node()
		case g.one(3):
			w.others = append(w.others, other{claim: c.Name, node: g.node(), again: g.one(3), touched: g.one(3)})
		}
		if g.one(12) {
			w.stale[c.Name] = true
		}
	}
	for _, pv := range w.volumes {
		if g.one(12) {
			w.stale[pv.Name] = true
		}
	}
	if len(w.running) > 0 {
		w.evicted = pick(g, w.running...).Name
	}
}
