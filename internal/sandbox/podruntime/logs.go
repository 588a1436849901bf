package podruntime

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// LogsDir is where a runtime with the folder dir keeps the logs of its pods.
func LogsDir(dir string) string { return filepath.Join(dir, "logs") }

// podLogs is the folder of one pod's logs. Names of pods and namespaces hold no
// underscore.
func (r *Runtime) podLogs(pod *corev1.Pod) string {
	return filepath.Join(LogsDir(r.Dir), logPrefix(pod.Namespace, pod.Name)+string(pod.UID))
}

// logPrefix begins the names of the log folders of pods of a name. A file name
// has at most 255 bytes; namespace and pod may have 316, and get a hash then.
func logPrefix(namespace, pod string) string {
	const max = 255 - len("_") - 36
	prefix := namespace + "_" + pod
	if len(prefix) > max {
		sum := sha256.Sum256([]byte(prefix))
		prefix = prefix[:max-17] + "-" + hex.EncodeToString(sum[:8])
	}
	return prefix + "_"
}

// LogFile finds the log of a container of a pod among the runtimes with these
// folders: of the youngest pod of this name. container may be empty when the pod
// has only one.
func LogFile(dirs []string, namespace, pod, container string) (string, error) {
	var newest string
	var newestTime int64
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(LogsDir(dir), logPrefix(namespace, pod)+"*"))
		if err != nil {
			return "", fmt.Errorf("pod name %q: %w", pod, err)
		}
		for _, f := range found {
			if info, err := os.Stat(f); err == nil && info.ModTime().UnixNano() > newestTime {
				newest, newestTime = f, info.ModTime().UnixNano()
			}
		}
	}
	if newest == "" {
		return "", fmt.Errorf("pod %s/%s has no logs here: it did not start yet, or is gone", namespace, pod)
	}
	entries, err := os.ReadDir(newest)
	if err != nil {
		return "", fmt.Errorf("listing the logs of pod %s/%s: %w", namespace, pod, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".log"))
	}
	if len(names) == 0 {
		return "", fmt.Errorf("pod %s/%s has no logs yet: none of its containers has started; its events say why", namespace, pod)
	}
	if container == "" && len(names) == 1 {
		container = names[0]
	}
	for _, n := range names {
		if n == container {
			return filepath.Join(newest, n+".log"), nil
		}
	}
	return "", fmt.Errorf("pod %s/%s: name one of its containers with --container: %s", namespace, pod, strings.Join(names, ", "))
}
