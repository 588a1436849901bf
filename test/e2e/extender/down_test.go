package extender_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDown: while berth-extender is down, every pod of the scheduler that asks it
// waits, one without volumes too, and its event says why; pods of the cluster's
// default scheduler notice nothing. When it is back, those that waited run.
func TestDown(t *testing.T) {
	w := newWorld(t)
	p, err := w.cluster.Process(w.cluster.SchedulerName())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	w.plainPod("asks", w.cluster.SchedulerName())
	w.plainPod("does-not", corev1.DefaultSchedulerName)
	w.awaitRunning("does-not")
	w.await("the pod says why it waits", func(ctx context.Context) (bool, string) {
		text := w.said(ctx, "asks")
		return strings.Contains(text, "FailedScheduling") && strings.Contains(text, "/filter") && strings.Contains(text, "connection refused"), text
	})
	waiting, err := w.client.CoreV1().Pods(namespace).Get(t.Context(), "asks", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if waiting.Spec.NodeName != "" {
		t.Errorf("the pod is on %s, where nobody asked whether it may be", waiting.Spec.NodeName)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	w.awaitRunning("asks")
}

// plainPod makes a pod without volumes.
func (w *world) plainPod(name, scheduler string) {
	w.t.Helper()
	_, err := w.client.CoreV1().Pods(namespace).Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"sleep", "infinity"}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) awaitRunning(name string) {
	w.t.Helper()
	w.await("pod "+name+" runs", func(ctx context.Context) (bool, string) {
		p, err := w.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return p.Status.Phase == corev1.PodRunning, w.said(ctx, name)
	})
}
