package story

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
)

// pidOf is the process of a pod's only container.
func pidOf(pod *corev1.Pod) (int, error) {
	for _, s := range pod.Status.ContainerStatuses {
		// podruntime writes berth-sandbox://<pid>@<start time>.
		_, id, _ := strings.Cut(s.ContainerID, "://")
		text, _, ok := strings.Cut(id, "@")
		if pid, err := strconv.Atoi(text); ok && err == nil {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("pod %s has no running container", pod.Name)
}

// inside is the path of a file as the pod sees it, in its own mount namespace.
func inside(pod *corev1.Pod, path string) (string, error) {
	pid, err := pidOf(pod)
	if err != nil {
		return "", err
	}
	return filepath.Join("/proc", strconv.Itoa(pid), "root", path), nil
}

// filePause is the time between two looks at a file that a pod is about to
// write.
const filePause = 50 * time.Millisecond

// words are what a pod, this one or an earlier one, wrote into a volume once.
func (t *teller) words(pod *corev1.Pod, volume string) (string, error) {
	return t.read(pod, filepath.Join(mountPath(volume), "words"), func(s string) bool { return s != "" })
}

// starts wants the volume's notes of the starts of pods to be these.
func (t *teller) starts(pod *corev1.Pod, volume string, want ...*corev1.Pod) error {
	uids := make([]string, 0, len(want))
	for _, p := range want {
		uids = append(uids, string(p.UID))
	}
	all := strings.Join(uids, "\n")
	got, err := t.read(pod, filepath.Join(mountPath(volume), "starts"), func(s string) bool { return len(s) >= len(all) })
	if err != nil {
		return err
	}
	if got != all {
		return fmt.Errorf("volume %s of pod %s noted the starts %q, want %q", volume, pod.Name, got, all)
	}
	return nil
}

// read reads a file from inside the pod: whole lines, and enough of them. A pod
// that only just started may still be about to write it.
func (t *teller) read(pod *corev1.Pod, file string, enough func(string) bool) (string, error) {
	path, err := inside(pod, file)
	if err != nil {
		return "", err
	}
	t.wait(fmt.Sprintf("waiting for pod %s to write %s", pod.Name, file))
	deadline := time.NewTimer(stepTimeout)
	defer deadline.Stop()
	ticker := time.NewTicker(filePause)
	defer ticker.Stop()
	for {
		raw, err := os.ReadFile(path)
		lines, whole := strings.CutSuffix(string(raw), "\n")
		if err == nil && whole && enough(lines) {
			return lines, nil
		}
		select {
		case <-deadline.C:
			if err != nil {
				return "", fmt.Errorf("reading %s of pod %s: %w", file, pod.Name, err)
			}
			return "", fmt.Errorf("reading %s of pod %s: it is not complete: %q", file, pod.Name, raw)
		case <-ticker.C:
		}
	}
}

// untilFile reads a file again whenever it is written to, until it is as wanted.
func untilFile(ctx context.Context, path string, wanted func(content string) string) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	defer watcher.Close()
	if err := watcher.Add(path); err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	for {
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		missing := wanted(string(raw))
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %s (%w)", path, missing, ctx.Err())
		case err := <-watcher.Errors:
			return fmt.Errorf("watching %s: %w", path, err)
		case <-watcher.Events:
		}
	}
}
