package podruntime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/host/process"
)

// Config says which node to run, and how.
type Config struct {
	NodeName string
	Zone     string
	// Dir is the runtime's own folder; LogsDir lies in it.
	Dir string
	// Hide is a folder that containers see empty: the sandbox's own.
	Hide string
	// Marker marks the processes of the sandbox: see process.Spec.
	Marker string
	// ContainerProgram calls container.Init; empty means this program.
	ContainerProgram string
	// APIHost and APIPort are told to containers, as in-cluster clients expect.
	APIHost, APIPort string

	Client kubernetes.Interface
	// Volumes gives the pods' CSI volumes; nil means that none can be had.
	Volumes Volumes
}

// Volumes is the node agent, as a runtime sees it: nodeagent/podvolumes.
type Volumes interface {
	// Prepare waits until all CSI volumes of the pod are published, and returns
	// them by their names in the pod. From its call until Release, the agent
	// takes the pod's processes as alive.
	Prepare(ctx context.Context, pod *corev1.Pod) (map[string]Volume, error)
	// Release says that the pod has no process any more, and waits until its
	// volumes are unpublished.
	Release(ctx context.Context, pod types.UID) error
}

// Volume is a CSI volume that the agent published.
type Volume struct {
	Path     string
	Block    bool
	ReadOnly bool
}

// Runtime runs the pods of one node.
type Runtime struct {
	Config
	events record.EventRecorder

	mu      sync.Mutex
	workers map[types.UID]*worker // guarded by mu
	running sync.WaitGroup
}

// New makes a runtime; Run runs it.
func New(c Config) *Runtime {
	return &Runtime{Config: c, workers: make(map[types.UID]*worker)}
}

// resync makes the informer tell of every pod again, which changes nothing: no
// state is lost between events. It is off.
const resync = 0 * time.Second

// Run runs the node until ctx ends; then it ends the pods' processes, and leaves
// their objects and volumes as they are.
func (r *Runtime) Run(ctx context.Context) error {
	if err := r.takeOver(ctx); err != nil {
		return err
	}
	stopEvents := r.startEvents(ctx)
	defer stopEvents()
	if err := r.registerNode(ctx); err != nil {
		return err
	}
	r.running.Go(func() { r.keepLease(ctx) })
	factory := informers.NewSharedInformerFactoryWithOptions(r.Client, resync,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", r.NodeName).String()
		}))
	informer := factory.Core().V1().Pods().Informer()
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { r.see(ctx, o) },
		UpdateFunc: func(_, o any) { r.see(ctx, o) },
		DeleteFunc: r.forget,
	})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		r.removeUnknown(ctx)
	}
	<-ctx.Done()
	factory.Shutdown()
	r.running.Wait()
	return nil
}

// nodeMarker marks the containers of this node, beside the sandbox's marker.
func (r *Runtime) nodeMarker() string { return "BERTH_SANDBOX_NODE=" + r.Dir }

// takeOver ends the containers of an earlier runtime of this node. From here on
// no process of any pod exists.
func (r *Runtime) takeOver(ctx context.Context) error {
	if _, err := process.KillMarked(ctx, r.nodeMarker()); err != nil {
		return fmt.Errorf("ending the containers of an earlier runtime: %w", err)
	}
	for _, dir := range []string{r.scratch(), r.podsDir(), LogsDir(r.Dir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making the runtime's folders: %w", err)
		}
	}
	return nil
}

func (r *Runtime) scratch() string { return filepath.Join(r.Dir, "scratch") }
func (r *Runtime) podsDir() string { return filepath.Join(r.Dir, "pods") }

func (r *Runtime) podDir(uid types.UID) string { return filepath.Join(r.podsDir(), string(uid)) }

// removeUnknown removes the folders of pods that are gone.
func (r *Runtime) removeUnknown(ctx context.Context) {
	entries, err := os.ReadDir(r.podsDir())
	if err != nil {
		klog.FromContext(ctx).Error(err, "listing the folders of pods failed")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range entries {
		if _, known := r.workers[types.UID(e.Name())]; known {
			continue
		}
		if err := os.RemoveAll(filepath.Join(r.podsDir(), e.Name())); err != nil { //nolint:forbidigo // no volume is mounted below
			klog.FromContext(ctx).Error(err, "removing the folder of a pod that is gone failed", "podUID", e.Name())
		}
	}
}

func (r *Runtime) startEvents(ctx context.Context) (stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.Client.CoreV1().Events("")})
	r.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "berth-sandbox", Host: r.NodeName})
	return broadcaster.Shutdown
}

// see gives a pod's object to its worker, and makes one for a new pod.
func (r *Runtime) see(ctx context.Context, object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[pod.UID]
	if w != nil {
		w.update(pod)
		return
	}
	w = newWorker(r, pod)
	w.update(pod) // before it runs: the pod may be on its way out
	r.workers[pod.UID] = w
	r.running.Go(func() { w.run(ctx) })
}

// forget tells the worker that the pod's object is gone.
func (r *Runtime) forget(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workers[pod.UID]; w != nil {
		w.vanish()
	}
}

// done takes a worker off that has nothing left to do.
func (r *Runtime) done(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.workers, uid)
}
