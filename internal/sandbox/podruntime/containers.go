package podruntime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/host/container"
	"github.com/berth-storage/berth/host/process"
)

// A container that ended is started again at once the first time, then after a
// pause that doubles; after steadyAfter of running it begins anew. Shorter than
// the kubelet's (10 s to 5 min): a sandbox is watched by a person.
const (
	restartFirst = time.Second
	restartLast  = time.Minute
	steadyAfter  = 5 * time.Minute
)

// runContainer runs a container, again and again as the pod's policy says, until
// it is finished or ctx ends. It reports whether the pod may go on to the next
// container: it ended by itself, with success.
func (w *worker) runContainer(ctx context.Context, c corev1.Container, init bool, csi map[string]Volume) bool {
	w.mu.Lock()
	finished, code := w.state.finished[c.Name], exitCode(w.state.statuses[c.Name])
	w.mu.Unlock()
	if finished {
		return code == 0
	}
	wait := time.Duration(0)
	for {
		exit, ran, ok := w.runOnce(ctx, c, csi)
		if !ok {
			return false
		}
		again := ctx.Err() == nil && restarts(w.current(), init, int32(exit.Code))
		w.ended(c.Name, exit, !again)
		if !again {
			return ctx.Err() == nil && exit.Code == 0
		}
		if ran > steadyAfter {
			wait = 0
		}
		if wait > 0 {
			message := fmt.Sprintf("the container ended (%s) and is started again in %s", exit, wait)
			w.backOff(c.Name, message)
		}
		if !pause(ctx, wait) {
			w.mu.Lock()
			w.state.finished[c.Name] = true
			w.mu.Unlock()
			w.changed()
			return false
		}
		wait = min(max(restartFirst, 2*wait), restartLast)
	}
}

// runOnce starts the container and waits for its end. ok is false when the pod's
// life ended before the container began.
func (w *worker) runOnce(ctx context.Context, c corev1.Container, csi map[string]Volume) (exit process.Exit, ran time.Duration, ok bool) {
	pod := w.current()
	var p *process.Process
	var setup *container.SetupError
	err := w.retry(ctx, "FailedToStart", func() error {
		spec, err := w.rt.containerSpec(ctx, pod, c, csi)
		if err != nil {
			return err
		}
		p, err = container.Start(ctx, container.Options{
			Name: c.Name, Program: w.rt.ContainerProgram, Marker: w.rt.Marker,
			Log: filepath.Join(w.rt.podLogs(pod), c.Name+".log"),
		}, spec)
		if errors.As(err, &setup) {
			return nil
		}
		return err
	})
	if err != nil {
		return process.Exit{}, 0, false
	}
	if setup != nil {
		w.warn("Failed", setup.Error())
		w.notStarted(c.Name, setup)
		return process.Exit{Code: startErrorCode, At: time.Now()}, 0, true
	}
	began := time.Now()
	w.started(c.Name, p)
	select {
	case <-p.Done():
	case <-ctx.Done():
		klog.FromContext(ctx).V(2).Info("ending a container", "container", c.Name, "reason", context.Cause(ctx).Error())
		// The grace period ends early when the object is gone.
		if err := p.Stop(w.existing, w.grace()); err != nil { //nolint:contextcheck // ctx is over; the grace period is not
			klog.FromContext(ctx).Error(err, "ending a container failed", "container", c.Name)
		}
		<-p.Done()
	}
	return p.Exit(), p.Exit().At.Sub(began), true
}

// startErrorCode is the exit code of a container whose command could not be run
// (kubelet, kuberuntime: "StartError").
const startErrorCode = 128

func (w *worker) change(name string, change func(*corev1.ContainerStatus)) {
	w.mu.Lock()
	s := w.state.statuses[name]
	change(&s)
	w.state.statuses[name] = s
	w.mu.Unlock()
	w.changed()
}

// countRestart notes the end of the run before the one that begins, if there was
// one.
func countRestart(s *corev1.ContainerStatus) {
	if s.State.Terminated != nil {
		s.LastTerminationState = corev1.ContainerState{Terminated: s.State.Terminated}
	}
	if s.LastTerminationState.Terminated != nil {
		s.RestartCount++
	}
}

// started notes a running container.
func (w *worker) started(name string, p *process.Process) {
	w.change(name, func(s *corev1.ContainerStatus) {
		countRestart(s)
		s.ContainerID = "berth-sandbox://" + p.ID().String()
		s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		s.Ready, s.Started = true, new(true)
	})
}

func (w *worker) notStarted(name string, err *container.SetupError) {
	w.change(name, func(s *corev1.ContainerStatus) {
		countRestart(s)
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: startErrorCode, Reason: "StartError", Message: err.Message, FinishedAt: metav1.Now(),
		}}
	})
}

// ended notes how a container ended.
func (w *worker) ended(name string, exit process.Exit, finished bool) {
	w.change(name, func(s *corev1.ContainerStatus) {
		s.Ready, s.Started = false, new(bool)
		w.state.finished[name] = finished
		if s.State.Running == nil {
			return // never ran: notStarted said why
		}
		t := &corev1.ContainerStateTerminated{
			ExitCode: int32(exit.Code), Signal: int32(exit.Signal), Reason: "Completed",
			StartedAt: s.State.Running.StartedAt, FinishedAt: metav1.NewTime(exit.At), ContainerID: s.ContainerID,
		}
		if exit.Code != 0 {
			t.Reason = "Error"
		}
		s.State = corev1.ContainerState{Terminated: t}
	})
}

func (w *worker) backOff(name, message string) {
	w.warn("BackOff", message)
	w.change(name, func(s *corev1.ContainerStatus) {
		s.LastTerminationState = corev1.ContainerState{Terminated: s.State.Terminated}
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: message}}
	})
}
