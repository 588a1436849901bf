package plugin

import (
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
)

// need is what could help a pod that the plugin refuses.
type need struct {
	pod types.NamespacedName
	// claims are the pod's, and those that theirs are made from, by key.
	claims []string
	// volumes that the claims name.
	volumes []string
	// classes of the claims that have no volume yet, and the smallest request
	// among these, in bytes.
	classes  []string
	smallest int64
	// drivers of the pod's volumes.
	drivers []string
	// wary: a node refused a claim lately, which any change of its capacity ends.
	wary bool
	// unknown: a claim is missing, which makes every class and driver possible.
	unknown bool
}

func (n *need) keys() []string {
	out := make([]string, 0, len(n.claims)+len(n.volumes)+len(n.classes)+len(n.drivers))
	for _, c := range n.claims {
		out = append(out, claimIndex(c))
	}
	for _, v := range n.volumes {
		out = append(out, volumeIndex(v))
	}
	for _, c := range n.classes {
		out = append(out, classIndex(c))
	}
	for _, d := range n.drivers {
		out = append(out, driverIndex(d))
	}
	if n.unknown {
		out = append(out, unknownIndex)
	}
	return out
}

func claimIndex(key string) string   { return "claim " + key }
func volumeIndex(name string) string { return "volume " + name }
func classIndex(name string) string  { return "class " + name }
func driverIndex(name string) string { return "driver " + name }

// unknownIndex lists the pods that any event may help.
const unknownIndex = "unknown"

// waiting knows what each pod that is not placed waits for, and finds the pods
// by it: an event is looked up once, not held against every pod.
type waiting struct {
	mu sync.Mutex
	// Guarded by mu: needs by pod UID, and the pods of each key of a need.
	needs map[types.UID]*need
	index map[string]map[types.UID]struct{}
}

func newWaiting() *waiting {
	return &waiting{needs: map[types.UID]*need{}, index: map[string]map[types.UID]struct{}{}}
}

// set notes what a pod waits for.
func (w *waiting) set(uid types.UID, n *need) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(uid)
	w.needs[uid] = n
	for _, k := range n.keys() {
		if w.index[k] == nil {
			w.index[k] = map[types.UID]struct{}{}
		}
		w.index[k][uid] = struct{}{}
	}
}

// forget drops a pod that is placed or gone.
func (w *waiting) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(uid)
}

// drop needs mu.
func (w *waiting) drop(uid types.UID) {
	n := w.needs[uid]
	if n == nil {
		return
	}
	delete(w.needs, uid)
	for _, k := range n.keys() {
		delete(w.index[k], uid)
		if len(w.index[k]) == 0 {
			delete(w.index, k)
		}
	}
}

// get is what the pod waits for, nil where it is not known.
func (w *waiting) get(uid types.UID) *need {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.needs[uid]
}

// all are the pods that wait for anything.
func (w *waiting) all() []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]types.NamespacedName, 0, len(w.needs))
	for _, n := range w.needs {
		out = append(out, n.pod)
	}
	return out
}

// classes are those that some pod waits for.
func (w *waiting) classes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, n := range w.needs {
		for _, c := range n.classes {
			if !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	return out
}

// of are the pods that any of the keys may help, each once.
func (w *waiting) of(keys ...string) []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[types.UID]struct{}{}
	var out []types.NamespacedName
	for _, k := range append(keys, unknownIndex) {
		for uid := range w.index[k] {
			if _, twice := seen[uid]; !twice {
				seen[uid] = struct{}{}
				out = append(out, w.needs[uid].pod)
			}
		}
	}
	return out
}

// follow drops pods that are deleted.
func (w *waiting) follow(pods toolscache.SharedIndexInformer) error {
	_, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			w.forget(pod.UID)
		}
	}})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	return nil
}
