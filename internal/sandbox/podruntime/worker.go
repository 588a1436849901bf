package podruntime

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Why a pod's processes are ended.
var (
	errDeleting = errors.New("the pod is being deleted")
	errVanished = errors.New("the pod's object is gone")
)

// retryFirst and retryLast bound the pause before something that failed is
// tried again; it doubles from one to the other.
const (
	retryFirst = 250 * time.Millisecond
	retryLast  = 10 * time.Second
)

// worker leads one pod through its life.
type worker struct {
	rt *Runtime

	// living ends when the pod's processes must: its cause is errDeleting,
	// errVanished or that of the runtime's end.
	living  context.Context
	endLife context.CancelCauseFunc
	// existing ends when the pod's object is gone.
	existing context.Context
	endExist context.CancelCauseFunc

	mu    sync.Mutex
	pod   *corev1.Pod // guarded by mu; never changed, only replaced
	state observed    // guarded by mu
	// dirty wakes the status writer.
	dirty chan struct{}
}

func newWorker(r *Runtime, pod *corev1.Pod) *worker {
	w := &worker{rt: r, pod: pod, state: observe(pod, metav1.Now()), dirty: make(chan struct{}, 1)}
	w.existing, w.endExist = context.WithCancelCause(context.Background())
	w.living, w.endLife = context.WithCancelCause(w.existing)
	return w
}

// update takes the newest object of the pod.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod = pod
	w.mu.Unlock()
	if pod.DeletionTimestamp != nil {
		w.endLife(errDeleting)
	}
}

// vanish says that the pod's object is gone, by force or by this runtime.
func (w *worker) vanish() { w.endExist(errVanished) }

func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// run is the whole life: the processes, then what is left of them. When ctx
// ends it ends the processes and leaves the rest to the next runtime.
func (w *worker) run(ctx context.Context) { //nolint:contextcheck // a pod's life has ends of its own
	pod := w.current()
	defer w.rt.done(pod.UID)
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(pod))
	ctx = klog.NewContext(ctx, logger)
	stop := context.AfterFunc(ctx, func() { w.endExist(context.Cause(ctx)) })
	defer stop()
	defer w.endExist(nil)

	statusCtx, stopStatus := context.WithCancel(klog.NewContext(w.existing, logger))
	var writer sync.WaitGroup
	writer.Go(func() { w.writeStatus(statusCtx) })
	if !terminal(pod) {
		w.live(klog.NewContext(w.living, logger)) //nolint:contextcheck // living ends before ctx does
	}
	stopStatus()
	writer.Wait()
	if ctx.Err() != nil {
		return
	}
	w.finish(ctx)
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// live brings the pod's processes up and returns when none exists any more.
func (w *worker) live(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	w.changed()
	pod := w.current()
	if why := unsupported(pod, w.rt.Volumes != nil); why != "" {
		w.warn("Unsupported", why)
		w.waiting("Unsupported", why)
		<-ctx.Done()
		return
	}
	csi, ok := w.prepare(ctx)
	if !ok {
		return
	}
	if err := os.MkdirAll(w.rt.podLogs(pod), 0o700); err != nil {
		klog.FromContext(ctx).Error(err, "making the pod's log folder failed")
	}
	for _, c := range pod.Spec.InitContainers {
		if !w.runContainer(ctx, c, true, csi) {
			return
		}
	}
	var running sync.WaitGroup
	for _, c := range pod.Spec.Containers {
		running.Go(func() { w.runContainer(ctx, c, false, csi) })
	}
	running.Wait()
}

// prepareTimeout is how long one Prepare may wait before the pod's owner is told
// what is missing.
const prepareTimeout = 20 * time.Second

// prepare waits for the pod's volumes; false when the pod's life ended first.
func (w *worker) prepare(ctx context.Context) (csi map[string]Volume, ok bool) {
	pod := w.current()
	err := w.retry(ctx, "FailedMount", func() error {
		if hasCSI(pod) {
			callCtx, cancel := context.WithTimeout(ctx, prepareTimeout)
			defer cancel()
			var err error
			if csi, err = w.rt.Volumes.Prepare(callCtx, pod); err != nil {
				return err
			}
		}
		return w.rt.makeLocalVolumes(ctx, pod)
	})
	return csi, err == nil
}

// retry tries until it succeeds or ctx ends, and tells the pod's owner what is
// in the way.
func (w *worker) retry(ctx context.Context, reason string, try func() error) error {
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		klog.FromContext(ctx).V(2).Info("trying again", "reason", reason, "err", err)
		// The first failure is often no more than a cache that lags.
		if wait > retryFirst {
			w.warn(reason, err.Error())
		}
		w.waiting(waitingReason(w.current()), err.Error())
		if !pause(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

// finish gives the volumes back and, once the pod is to be deleted, lets its
// object go. No process of the pod exists any more.
func (w *worker) finish(ctx context.Context) {
	logger := klog.FromContext(ctx)
	pod := w.current()
	if err := os.RemoveAll(w.rt.podDir(pod.UID)); err != nil { //nolint:forbidigo // no volume is mounted below
		logger.Error(err, "removing the pod's local volumes failed")
	}
	if w.rt.Volumes != nil && hasCSI(pod) {
		for wait := retryFirst; ; wait = min(2*wait, retryLast) {
			err := w.rt.Volumes.Release(ctx, pod.UID)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			logger.Error(err, "giving the pod's volumes back failed")
			w.warn("FailedUnmount", err.Error())
			if !pause(ctx, wait) {
				return
			}
		}
	}
	// A pod that ended by itself stays until somebody deletes it.
	<-w.living.Done()
	if ctx.Err() == nil {
		w.deleteObject(ctx)
	}
	if ctx.Err() == nil {
		if err := os.RemoveAll(w.rt.podLogs(pod)); err != nil { //nolint:forbidigo // logs
			logger.Error(err, "removing the pod's logs failed")
		}
	}
}

// deleteObject completes the deletion, as only a node may: the object is kept
// until its processes and volumes are gone.
func (w *worker) deleteObject(ctx context.Context) {
	pod := w.current()
	for w.existing.Err() == nil {
		err := w.rt.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		klog.FromContext(ctx).Error(err, "completing the pod's deletion failed")
		if !pause(ctx, retryFirst) {
			return
		}
	}
}

// grace is how long the pod's processes have to end by themselves.
func (w *worker) grace() time.Duration {
	pod := w.current()
	seconds := ptr.Deref(pod.DeletionGracePeriodSeconds, ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 30))
	return time.Duration(seconds) * time.Second
}

func (w *worker) warn(reason, message string) {
	w.rt.events.Event(w.current(), corev1.EventTypeWarning, reason, message)
}

// waiting says what all containers wait for that do not run.
func (w *worker) waiting(reason, message string) {
	w.mu.Lock()
	for name, s := range w.state.statuses {
		if s.State.Waiting != nil {
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
			w.state.statuses[name] = s
		}
	}
	w.mu.Unlock()
	w.changed()
}

// changed wakes the status writer.
func (w *worker) changed() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}
