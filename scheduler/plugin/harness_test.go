package plugin

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/scheduler/binder"
	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// eventually bounds waits for informers; only a broken test waits so long.
const eventually = 30 * time.Second

const driverName = volume.DriverName

// cluster is an API server's behaviour as far as the plugin relies on it: a
// fake clientset whose objects get a new version with every write, and that
// refuses a patch on another version.
type cluster struct {
	t       *testing.T
	client  *fake.Clientset
	factory informers.SharedInformerFactory

	mu sync.Mutex
	// version of the last write, guarded by mu.
	version int
	// beforePatch, if set, runs before each patch, and may fail it. Guarded by mu.
	beforePatch func(resource, name string) error
}

func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	c := &cluster{t: t, client: fake.NewClientset()}
	c.client.PrependReactor("patch", "*", c.patch)
	for _, o := range objects {
		c.put(o)
	}
	c.factory = informers.NewSharedInformerFactory(c.client, 0)
	return c
}

func resourceOf(o runtime.Object) schema.GroupVersionResource {
	switch o.(type) {
	case *corev1.PersistentVolume:
		return corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	case *corev1.PersistentVolumeClaim:
		return corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	case *corev1.Node:
		return corev1.SchemeGroupVersion.WithResource("nodes")
	case *corev1.Pod:
		return corev1.SchemeGroupVersion.WithResource("pods")
	case *storagev1.StorageClass:
		return storagev1.SchemeGroupVersion.WithResource("storageclasses")
	case *storagev1.CSIStorageCapacity:
		return storagev1.SchemeGroupVersion.WithResource("csistoragecapacities")
	case *storagev1.CSIDriver:
		return storagev1.SchemeGroupVersion.WithResource("csidrivers")
	case *storagev1.VolumeAttachment:
		return storagev1.SchemeGroupVersion.WithResource("volumeattachments")
	case *storagev1.CSINode:
		return storagev1.SchemeGroupVersion.WithResource("csinodes")
	}
	panic(fmt.Sprintf("no resource for %T", o))
}

// put creates or replaces an object.
func (c *cluster) put(o runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.write(o); err != nil {
		panic(err)
	}
}

// write needs mu. It copies: informers keep what they are given.
func (c *cluster) write(o runtime.Object) error {
	o = o.DeepCopyObject()
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	c.version++
	m.SetResourceVersion(strconv.Itoa(c.version))
	gvr := resourceOf(o)
	if _, err := c.client.Tracker().Get(gvr, m.GetNamespace(), m.GetName()); apierrors.IsNotFound(err) {
		return c.client.Tracker().Create(gvr, o, m.GetNamespace())
	}
	return c.client.Tracker().Update(gvr, o, m.GetNamespace())
}

func (c *cluster) delete(o runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := meta.Accessor(o)
	if err == nil {
		err = c.client.Tracker().Delete(resourceOf(o), m.GetNamespace(), m.GetName())
	}
	if err != nil {
		panic(err)
	}
}

// patch is a merge patch with metadata.resourceVersion as its precondition.
func (c *cluster) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	p := action.(clienttesting.PatchAction)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.beforePatch != nil {
		if err := c.beforePatch(p.GetResource().Resource, p.GetName()); err != nil {
			return true, nil, err
		}
	}
	old, err := c.client.Tracker().Get(p.GetResource(), p.GetNamespace(), p.GetName())
	if err != nil {
		return true, nil, err
	}
	var sent metav1.PartialObjectMetadata
	if err := json.Unmarshal(p.GetPatch(), &sent); err != nil {
		return true, nil, err
	}
	m, err := meta.Accessor(old)
	if err != nil {
		return true, nil, err
	}
	if sent.ResourceVersion != "" && sent.ResourceVersion != m.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(p.GetResource().GroupResource(), p.GetName(), fmt.Errorf("version %s, not %s", m.GetResourceVersion(), sent.ResourceVersion))
	}
	raw, err := json.Marshal(old)
	if err != nil {
		return true, nil, err
	}
	merged, err := jsonpatch.MergePatch(raw, p.GetPatch())
	if err != nil {
		return true, nil, err
	}
	// Into a new object: what the patch removed must not stay.
	fresh := reflect.New(reflect.TypeOf(old).Elem()).Interface().(runtime.Object)
	if err := json.Unmarshal(merged, fresh); err != nil {
		return true, nil, err
	}
	if err := c.write(fresh); err != nil {
		return true, nil, err
	}
	now, err := c.client.Tracker().Get(p.GetResource(), p.GetNamespace(), p.GetName())
	return true, now, err
}

func (c *cluster) claim(name string) *corev1.PersistentVolumeClaim {
	o, err := c.client.Tracker().Get(resourceOf(&corev1.PersistentVolumeClaim{}), "default", name)
	if err != nil {
		c.t.Fatalf("claim %s: %v", name, err)
	}
	return o.(*corev1.PersistentVolumeClaim).DeepCopy()
}

func (c *cluster) volume(name string) *corev1.PersistentVolume {
	o, err := c.client.Tracker().Get(resourceOf(&corev1.PersistentVolume{}), "", name)
	if err != nil {
		c.t.Fatalf("volume %s: %v", name, err)
	}
	return o.(*corev1.PersistentVolume).DeepCopy()
}

// pvController answers what the scheduler writes as the PV controller and a
// provisioner would, until ctx ends. Volumes are numbered from 100.
func (c *cluster) pvController(ctx context.Context) {
	claims, err := c.client.CoreV1().PersistentVolumeClaims("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	volumes, err := c.client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer claims.Stop()
		defer volumes.Stop()
		number := int64(100)
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-claims.ResultChan():
				pvc, ok := e.Object.(*corev1.PersistentVolumeClaim)
				if !ok || pvc.Annotations[volume.AnnSelectedNode] == "" || pvc.Spec.VolumeName != "" {
					continue
				}
				number++
				pv := provisioned(pvc, number)
				c.put(pv)
				c.put(boundTo(pvc, pv.Name))
			case e := <-volumes.ResultChan():
				pv, ok := e.Object.(*corev1.PersistentVolume)
				if !ok || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" || pv.Status.Phase != corev1.VolumeAvailable {
					continue
				}
				pv = pv.DeepCopy()
				pv.Status.Phase = corev1.VolumeBound
				c.put(pv)
				c.put(boundTo(c.claim(pv.Spec.ClaimRef.Name), pv.Name))
			}
		}
	}()
}

func provisioned(pvc *corev1.PersistentVolumeClaim, number int64) *corev1.PersistentVolume {
	pv := makePV(volume.PVName(string(pvc.UID)), *pvc.Spec.StorageClassName, pvc.Spec.Resources.Requests.Storage().String(), pvc.Annotations[volume.AnnSelectedNode])
	pv.Annotations = map[string]string{volume.AnnotationPool: "pool-" + pvc.Annotations[volume.AnnSelectedNode], volume.AnnotationAllocation: strconv.FormatInt(number, 10)}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID}
	pv.Status.Phase = corev1.VolumeBound
	return pv
}

func boundTo(pvc *corev1.PersistentVolumeClaim, pv string) *corev1.PersistentVolumeClaim {
	pvc = pvc.DeepCopy()
	pvc.Spec.VolumeName = pv
	metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnBindCompleted, "yes")
	pvc.Status.Phase = corev1.ClaimBound
	return pvc
}

// rig is the plugin on the real framework runtime.
type rig struct {
	*cluster
	framework framework.Framework
	plugin    *Plugin
	events    *events.FakeRecorder
	ctx       context.Context
}

// start brings the plugin up over the cluster. Nodes and the pods on them are
// the scheduler's own snapshot of the cycle.
func (c *cluster) start(ctx context.Context, onNodes ...*corev1.Pod) *rig {
	c.t.Helper()
	r := &rig{cluster: c, ctx: ctx, events: events.NewFakeRecorder(16)}
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var nodes []*corev1.Node
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	r.framework, err = tf.NewFramework(ctx, []tf.RegisterPluginFunc{
		tf.RegisterQueueSortPlugin(queuesort.Name, queuesort.New),
		tf.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
		tf.RegisterPluginAsExtensions(Name, func(ctx context.Context, o runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			p, err := new(Factory).New(ctx, o, h)
			if err == nil {
				r.plugin = p.(*Plugin)
			}
			return p, err
		}, "PreFilter", "Filter", "PreScore", "Score", "Reserve", "PreBind"),
	}, "berth-scheduler",
		frameworkruntime.WithClientSet(c.client), frameworkruntime.WithInformerFactory(c.factory),
		frameworkruntime.WithEventRecorder(r.events),
		frameworkruntime.WithSnapshotSharedLister(schedcache.NewSnapshot(onNodes, nodes)),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(c.factory.Storage().V1().CSINodes().Lister())),
	)
	if err != nil {
		c.t.Fatal(err)
	}
	c.factory.Start(ctx.Done())
	c.factory.WaitForCacheSync(ctx.Done())
	// The events of the first list, too: a late one would be taken for the test's.
	r.plugin.cache.WaitForSync(ctx)
	return r
}

// rebind gives the plugin a binder with other options.
func (r *rig) rebind(change func(*binder.Options)) {
	o := binder.Options{
		Client: r.client, Cache: r.plugin.cache, Nodes: nodes{r.plugin.handle}, Shape: binding.DefaultShape(), Clock: clock.RealClock{}, Events: r.events,
	}
	change(&o)
	r.plugin.binder = binder.New(o)
}

// cycle is one pod on its way through the framework.
type cycle struct {
	*rig
	pod   *corev1.Pod
	state fwk.CycleState
}

// judge runs PreFilter and Filter, and returns what each node answered, in
// words; a node that passed is not in it.
func (r *rig) judge(pod *corev1.Pod) (*cycle, map[string]string) {
	r.t.Helper()
	cy := &cycle{rig: r, pod: pod, state: framework.NewCycleState()}
	refused := map[string]string{}
	infos, err := r.framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		r.t.Fatal(err)
	}
	_, status, _ := r.framework.RunPreFilterPlugins(r.ctx, cy.state, pod)
	for _, info := range infos {
		s := status
		if s.IsSuccess() {
			s = r.framework.RunFilterPlugins(r.ctx, cy.state, pod, info)
		}
		if !s.IsSuccess() {
			refused[info.Node().Name] = s.Code().String() + ": " + s.Message()
		}
	}
	return cy, refused
}

func (cy *cycle) reserve(node string) *fwk.Status {
	return cy.framework.RunReservePluginsReserve(cy.ctx, cy.state, cy.pod, node)
}

func (cy *cycle) unreserve() {
	cy.framework.RunReservePluginsUnreserve(cy.ctx, cy.state, cy.pod, "n1")
}

func (cy *cycle) bind(ctx context.Context, node string) *fwk.Status {
	if s := cy.framework.RunPreBindPreFlights(ctx, cy.state, cy.pod, node); !s.IsSuccess() {
		return s
	}
	return cy.framework.RunPreBindPlugins(ctx, cy.state, cy.pod, node)
}

// seen waits until the informers and the cache have what the API has.
func (r *rig) seen(done func() bool) {
	r.t.Helper()
	deadline := time.After(eventually)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatal("the informers did not catch up")
		}
	}
}

// Makers of objects.

func makeNode(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{volume.LabelHostname: name}}}
	for i := 0; i+1 < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

func makeClass(name, provisioner string, topologies ...string) *storagev1.StorageClass {
	sc := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	for i := 0; i+1 < len(topologies); i += 2 {
		sc.AllowedTopologies = append(sc.AllowedTopologies, corev1.TopologySelectorTerm{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: topologies[i], Values: []string{topologies[i+1]}}},
		})
	}
	return sc
}

func makeDriver(name string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}}
}

func makeCapacity(class, node, size string, allocation int) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: class + "-" + node, Annotations: map[string]string{
			volume.AnnotationPool: "pool-" + node, volume.AnnotationAllocation: strconv.Itoa(allocation),
		}},
		StorageClassName: class, Capacity: new(resource.MustParse(size)),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{volume.LabelHostname: node}},
	}
}

func makeAttachment(pv, node, attacher string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va-" + pv + "-" + node}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: attacher, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
	}}
}

func makePVC(name, class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
}

func makePV(name, class, size, node string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle-" + name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	if node != "" {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: volume.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
	}
	return pv
}

func makePod(name string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{SchedulerName: "berth-scheduler"}}
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return pod
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
