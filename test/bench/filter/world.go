package main

import (
	"context"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/volume"
)

// The profiles of the scheduler that is measured.
const (
	berth = "berth"
	stock = "stock"
)

const (
	namespace = "default"
	driver    = "bench.csi.example.com"
)

// world is a cluster in informers that nothing fills but this program, and a
// kube-scheduler over it with two profiles, one with each side's plugins.
type world struct {
	factory  informers.SharedInformerFactory
	sched    *scheduler.Scheduler
	snapshot *schedcache.Snapshot
	nodes    []*corev1.Node
	pods     []*corev1.Pod
	infos    []fwk.NodeInfo
	// objects are all that was put.
	objects []runtime.Object

	ours, binding, limits filterer
}

// filterer is what is measured of a plugin.
type filterer interface {
	fwk.PreFilterPlugin
	fwk.FilterPlugin
}

func quiet() {
	klog.SetLogger(logr.Discard())
	klog.SetOutput(io.Discard)
}

// put adds an object to its informer's store.
func (w *world) put(o runtime.Object) {
	var store toolscache.Store
	core, storage := w.factory.Core().V1(), w.factory.Storage().V1()
	switch o := o.(type) {
	case *corev1.Node:
		store = core.Nodes().Informer().GetStore()
		w.nodes = append(w.nodes, o)
	case *corev1.Pod:
		store = core.Pods().Informer().GetStore()
		if o.Spec.NodeName != "" {
			w.pods = append(w.pods, o)
		}
	case *corev1.PersistentVolume:
		store = core.PersistentVolumes().Informer().GetStore()
	case *corev1.PersistentVolumeClaim:
		store = core.PersistentVolumeClaims().Informer().GetStore()
	case *storagev1.StorageClass:
		store = storage.StorageClasses().Informer().GetStore()
	case *storagev1.CSIStorageCapacity:
		store = storage.CSIStorageCapacities().Informer().GetStore()
	case *storagev1.CSIDriver:
		store = storage.CSIDrivers().Informer().GetStore()
	case *storagev1.CSINode:
		store = storage.CSINodes().Informer().GetStore()
	}
	if err := store.Add(o); err != nil {
		panic(err) // an object without a name
	}
	w.objects = append(w.objects, o)
}

// newWorld fills a cluster and starts the plugins over it.
func newWorld(ctx context.Context, fill func(*world)) (*world, error) {
	client := fake.NewClientset()
	w := &world{factory: informers.NewSharedInformerFactory(client, 0)}
	fill(w)
	w.snapshot = schedcache.NewSnapshot(w.pods, w.nodes)
	factory := new(plugin.Factory)
	var err error
	w.sched, err = scheduler.New(ctx, client, w.factory, nil,
		func(string) events.EventRecorderLogger { return noEvents{} },
		scheduler.WithProfiles(profile(berth, plugin.Name), profile(stock, volumebinding.Name, nodevolumelimits.CSIName)),
		scheduler.WithNodeInfoSnapshot(w.snapshot),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{plugin.Name: func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			p, err := factory.New(ctx, args, h)
			if err == nil {
				w.ours = p.(filterer)
			}
			return p, err
		}}))
	if err != nil {
		return nil, fmt.Errorf("making the scheduler: %w", err)
	}
	if err := w.startTheirs(ctx); err != nil {
		return nil, err
	}
	w.infos, err = w.snapshot.NodeInfos().List()
	return w, err
}

// touch makes every node one whose pods have changed.
func (w *world) touch() {
	for _, info := range w.infos {
		if n, ok := info.(*framework.NodeInfo); ok {
			n.Generation++
		}
	}
}

// startTheirs makes upstream's plugins once more, to be called without the
// framework between, as ours is.
func (w *world) startTheirs(ctx context.Context) error {
	handle, ok := w.sched.Profiles[stock].(fwk.Handle)
	if !ok {
		return fmt.Errorf("a %T is no handle", w.sched.Profiles[stock])
	}
	binding, err := volumebinding.New(ctx, bindingArgs(), handle, feature.Features{EnableVolumeAttributesClass: true, EnableStorageCapacityScoring: true})
	if err != nil {
		return fmt.Errorf("making VolumeBinding: %w", err)
	}
	limits, err := nodevolumelimits.NewCSI(ctx, nil, handle, feature.Features{EnableVolumeLimitScaling: true})
	if err != nil {
		return fmt.Errorf("making NodeVolumeLimits: %w", err)
	}
	w.binding, w.limits = binding.(filterer), limits.(filterer)
	return nil
}

func bindingArgs() *config.VolumeBindingArgs {
	return &config.VolumeBindingArgs{BindTimeoutSeconds: 600, Shape: []config.UtilizationShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}}
}

// profile has the plugins named and what no scheduler is without.
func profile(name string, plugins ...string) config.KubeSchedulerProfile {
	p := config.KubeSchedulerProfile{SchedulerName: name, Plugins: &config.Plugins{
		QueueSort: config.PluginSet{Enabled: []config.Plugin{{Name: queuesort.Name}}},
		Bind:      config.PluginSet{Enabled: []config.Plugin{{Name: defaultbinder.Name}}},
	}}
	for _, name := range plugins {
		p.Plugins.MultiPoint.Enabled = append(p.Plugins.MultiPoint.Enabled, config.Plugin{Name: name, Weight: 1})
		if name == volumebinding.Name {
			p.PluginConfig = append(p.PluginConfig, config.PluginConfig{Name: name, Args: bindingArgs()})
		}
	}
	return p
}

// noEvents records nothing.
type noEvents struct{}

func (noEvents) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}
func (noEvents) WithLogger(klog.Logger) events.EventRecorderLogger       { return noEvents{} }

// Makers of objects. Versions are equal: nothing changes.

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"}
}

func quantity(gib int) resource.Quantity {
	return *resource.NewQuantity(int64(gib)*volume.GiB, resource.BinarySI)
}

func node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: meta(name)}
	n.Labels = map[string]string{
		volume.LabelHostname: name, volume.LabelZone: "zone-" + name[len(name)-1:],
		"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m", "pool": "general",
	}
	return n
}

func class(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: meta(name), Provisioner: provisioner, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
}

func claim(name, class string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity(2)}},
	}}
	c.Namespace = namespace
	return c
}

// bind makes a claim one that is bound to a volume.
func bind(c *corev1.PersistentVolumeClaim, pv string) *corev1.PersistentVolumeClaim {
	c.Spec.VolumeName = pv
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	c.Status.Phase = corev1.ClaimBound
	return c
}

func localVolume(name, class, on string, gib int) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: meta(name),
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: quantity(gib)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/" + name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: volume.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{on}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
}

// remoteVolume is one that a claim is bound to and any node can attach.
func remoteVolume(of *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	pv := localVolume(of.Spec.VolumeName, *of.Spec.StorageClassName, "", 2)
	pv.Spec.NodeAffinity = nil
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: pv.Name}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: of.Namespace, Name: of.Name, UID: of.UID}
	pv.Status.Phase = corev1.VolumeBound
	return pv
}

func capacity(class, on string, gib int) *storagev1.CSIStorageCapacity {
	c := &storagev1.CSIStorageCapacity{
		ObjectMeta: meta("capacity-" + on), StorageClassName: class, Capacity: new(quantity(gib)),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{volume.LabelHostname: on}},
	}
	c.Namespace = namespace
	c.Annotations = map[string]string{volume.AnnotationPool: "pool-" + on, volume.AnnotationAllocation: "7"}
	return c
}

// csiNode has the driver, with an attach limit unless that is 0.
func csiNode(name string, limit int32) *storagev1.CSINode {
	d := storagev1.CSINodeDriver{Name: driver, NodeID: name}
	if limit > 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
	}
	return &storagev1.CSINode{ObjectMeta: meta(name), Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{d}}}
}

// pod is one with the claims, on a node or, if that is empty, to be placed.
func pod(name, on string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{NodeName: on}}
	p.Namespace = namespace
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return p
}

// queued is a pod as the scheduler's queue hands it out.
func queued(p *corev1.Pod) (*framework.QueuedPodInfo, error) {
	info, err := framework.NewPodInfo(p)
	return &framework.QueuedPodInfo{PodInfo: info}, err
}
