package oracle

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-storage/berth/volume"
)

func sortByName[T metav1.Object](s []T) {
	for i := range s {
		for j := i; j > 0 && s[j].GetName() < s[j-1].GetName(); j-- {
			s[j], s[j-1] = s[j-1], s[j]
		}
	}
}

func makePod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)}}
}

func claimVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
}

func ephemeralVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}}
}

func ebsVolume(id string) corev1.Volume {
	return corev1.Volume{Name: "disk-" + id, VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}}
}

// makeClaims makes the pod under question with up to four claims, others that
// are in the cluster, and the pods that run.
func (g *generator) makeClaims() {
	w := g.w
	w.pod = makePod("p")
	// Other claims come first, for clones.
	for i := range g.some(aboutAttaching, 2, 4) {
		w.claims = append(w.claims, g.claim(fmt.Sprintf("other%d", i)))
	}
	names := []string{"a", "b", "c", "d"}
	g.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:g.some(aboutVolumes, 2, 3)] {
		g.makeVolumeOfPod(name)
	}
	if len(w.pod.Spec.Volumes) > 0 && len(w.pod.Spec.Volumes) < 4 && g.one(25) {
		twice := pick(g, w.pod.Spec.Volumes...)
		if twice.PersistentVolumeClaim != nil {
			twice.Name += "-again"
			w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, twice)
		}
	}
	if g.one(5) {
		w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, ebsVolume("vol-"+strconv.Itoa(g.IntN(3))))
	}
	if g.one(10) {
		w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: otherDriver}}})
	}
	for i := range g.some(aboutAttaching, 2, 4) {
		g.makeRunning(fmt.Sprintf("r%d", i))
	}
}

func (g *generator) makeVolumeOfPod(name string) {
	w := g.w
	if g.one(12) {
		w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, ephemeralVolume(name))
		name = "p-" + name
		if g.one(6) {
			return
		}
		c := g.claim(name)
		if !g.one(4) {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "p", UID: w.pod.UID, Controller: new(true)}}
		}
		w.claims = append(w.claims, c)
		return
	}
	w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, claimVolume(name))
	if g.one(60) {
		return
	}
	c := g.claim(name)
	if g.one(60) {
		c.Status.Phase = corev1.ClaimLost
		c.Spec.VolumeName = "lost"
	}
	if g.one(60) {
		c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
		c.Finalizers = []string{"kubernetes.io/pvc-protection"}
	}
	w.claims = append(w.claims, c)
}

func (g *generator) className() string {
	switch {
	case g.about == aboutCapacity && !g.one(4):
		return pick(g, "tracked", "tracked", "twin", "dynamic", "dynamic")
	case g.about == aboutVolumes && !g.one(4):
		return "local"
	case g.about == aboutAttaching && !g.one(4):
		return pick(g, "tracked", "untracked", "ebs")
	}
	return pick(g, "tracked", "tracked", "tracked", "twin", "dynamic", "dynamic", "untracked", "local", "local", "local", "ebs")
}

// claim makes a claim in any state that the API can show.
func (g *generator) claim(name string) *corev1.PersistentVolumeClaim {
	class := g.className()
	if g.one(50) {
		class = pick(g, "now", "absent", "")
	}
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	c.Spec.StorageClassName = new(class)
	if !g.one(20) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: g.size()}
	}
	if g.one(60) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(pick(g, "10E", "100E"))}
	}
	if g.odd(8) {
		c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	}
	if g.odd(8) {
		c.Spec.VolumeAttributesClassName = new("gold")
	}
	if g.one(10) {
		c.Spec.AccessModes = append(c.Spec.AccessModes, corev1.ReadOnlyMany)
	}
	if g.one(3) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"color": pick(g, "red", "blue")}}
	}
	g.cloned(c)
	if g.about == aboutAttaching && !g.one(3) {
		g.bound(c)
		return c
	}
	if g.about == aboutVolumes && !g.one(4) {
		return c
	}
	switch g.IntN(9) {
	case 0:
		g.bound(c)
	case 2:
		if class != "local" {
			c.Annotations = map[string]string{volume.AnnSelectedNode: g.node()}
		}
	case 3:
		if g.one(6) {
			c.Spec.VolumeName = "half"
		}
	case 4:
		if g.one(6) {
			c.Annotations = map[string]string{volume.AnnSelectedNode: ""}
		}
	}
	return c
}

// cloned makes some claims from a snapshot or from another claim.
func (g *generator) cloned(c *corev1.PersistentVolumeClaim) {
	switch {
	case g.one(6) && len(g.w.claims) > 0:
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: pick(g, g.w.claims...).Name}
	case g.one(15):
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "s"}
	default:
		return
	}
	c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: c.Spec.DataSource.APIGroup, Kind: c.Spec.DataSource.Kind, Name: c.Spec.DataSource.Name}
}

// bound binds the claim to a volume of its own, or to one that is not there.
func (g *generator) bound(c *corev1.PersistentVolumeClaim) {
	c.Spec.VolumeName = "bound-" + c.Name
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	c.Status.Phase = corev1.ClaimBound
	if g.one(3) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnSelectedNode, g.node())
	}
	if g.one(10) {
		return
	}
	pv := g.pv(c.Spec.VolumeName, *c.Spec.StorageClassName)
	pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	pv.Status.Phase = corev1.VolumeBound
	g.w.volumes = append(g.w.volumes, pv)
}

func (g *generator) makeRunning(name string) {
	p := makePod(name)
	p.Spec.NodeName = g.node()
	for range 1 + g.IntN(2) {
		if len(g.w.claims) > 0 {
			p.Spec.Volumes = append(p.Spec.Volumes, claimVolume(pick(g, g.w.claims...).Name))
		}
	}
	for i := range p.Spec.Volumes {
		p.Spec.Volumes[i].Name = fmt.Sprintf("v%d", i)
	}
	if g.one(4) {
		p.Spec.Volumes = append(p.Spec.Volumes, ebsVolume("vol-"+strconv.Itoa(g.IntN(3))))
	}
	if g.one(8) {
		p.Spec.Volumes = append(p.Spec.Volumes, ephemeralVolume("e"))
		c := g.claim(name + "-e")
		if g.one(2) {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: p.UID, Controller: new(true)}}
		}
		g.w.claims = append(g.w.claims, c)
	}
	g.w.running = append(g.w.running, p)
}
