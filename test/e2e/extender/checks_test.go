package extender_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

// claims watches which claim has which node. The events of one kind come in the
// order of the writes, so that each state that it sees is one that the API had.
type claims struct {
	fits map[string]int

	mu sync.Mutex
	// Guarded by mu. node: claim → its selected node, "" for none. wrong: what must
	// never be, as it was seen.
	node  map[string]string
	wrong []string
}

func watchClaims(t *testing.T, client kubernetes.Interface, fits map[string]int) *claims {
	t.Helper()
	c := &claims{fits: fits, node: map[string]string{}}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().PersistentVolumeClaims().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.saw,
		UpdateFunc: func(_, obj any) { c.saw(obj) },
		DeleteFunc: c.gone,
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	return c
}

func (c *claims) saw(obj any) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before, now := c.node[claim.Name], claim.Annotations[volume.AnnSelectedNode]
	c.node[claim.Name] = now
	if before != "" && now != before {
		c.wrong = append(c.wrong, fmt.Sprintf("claim %s was given back by node %s: it was sent where there was no room", claim.Name, before))
	}
	if now == before {
		return
	}
	if n := c.on(now); now != "" && n > c.fits[now] {
		c.wrong = append(c.wrong, fmt.Sprintf("node %s is to have %d claims, and has room for %d", now, n, c.fits[now]))
	}
}

func (c *claims) gone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.node, claim.Name)
}

// on counts the claims of a node; it needs mu.
func (c *claims) on(node string) int {
	n := 0
	for _, on := range c.node {
		if on == node {
			n++
		}
	}
	return n
}

func (c *claims) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.node)
}

// selected is how many claims have a node.
func (w *world) selected() int {
	w.claims.mu.Lock()
	defer w.claims.mu.Unlock()
	return len(w.claims.node) - w.claims.on("")
}

// overcommits is what was seen since it was last asked for.
func (w *world) overcommits() []string {
	w.claims.mu.Lock()
	defer w.claims.mu.Unlock()
	wrong := w.claims.wrong
	w.claims.wrong = nil
	return wrong
}

// awaitAll waits until all pods run; what is stuck is told with all that is known.
func (w *world) awaitAll(n int) {
	w.t.Helper()
	defer func() {
		if w.t.Failed() {
			w.tellStuck()
		}
	}()
	w.await("all pods run", func(ctx context.Context) (bool, string) {
		list, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		running := 0
		for i := range list.Items {
			if list.Items[i].Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == n, fmt.Sprintf("%d of %d run", running, n)
	})
}

// checkPools: each pool has as many volumes as it fits, and holds them all.
func (w *world) checkPools() {
	w.t.Helper()
	list, err := w.client.CoreV1().PersistentVolumes().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	perNode, bytes := map[string]int{}, map[string]int64{}
	for _, pv := range list.Items {
		if pv.Status.Phase != corev1.VolumeBound {
			w.t.Errorf("volume %s is %s: it is nobody's", pv.Name, pv.Status.Phase)
		}
		node := pv.Labels[volume.LabelNode]
		perNode[node]++
		bytes[node] += pv.Spec.Capacity.Storage().Value()
	}
	if diff := cmp.Diff(w.fits, perNode); diff != "" {
		w.t.Errorf("volumes by node (-want +got):\n%s", diff)
	}
	for node, n := range bytes {
		if n > w.room[node] {
			w.t.Errorf("node %s holds %s, and had room for %s", node, volume.FormatBytes(n), volume.FormatBytes(w.room[node]))
		}
	}
}

// tellStuck says of each pod that does not run what there is to know.
func (w *world) tellStuck() {
	w.t.Helper()
	// The test's own context may be what ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), patience)
	defer cancel()
	pods, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		w.t.Log(err)
		return
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase != corev1.PodRunning {
			w.t.Logf("stuck: pod %s is %s on node %q\n%s", p.Name, p.Status.Phase, p.Spec.NodeName, w.said(ctx, p.Name))
		}
	}
	w.t.Logf("capacities: %v", w.capacities())
	for _, name := range []string{w.cluster.SchedulerName(), sandbox.ExtenderScheduler} {
		if p, err := w.cluster.Process(name); err == nil {
			w.t.Logf("the end of the log of %s:\n%s", name, tail(p.Log(), 40))
		}
	}
}

// said is the claim of a pod, and the events of both, which have one name.
func (w *world) said(ctx context.Context, name string) string {
	var all []string
	if c, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
		all = append(all, fmt.Sprintf("  claim is %s, volume %q, selected node %q", c.Status.Phase, c.Spec.VolumeName, c.Annotations[volume.AnnSelectedNode]))
	}
	list, err := w.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return err.Error()
	}
	for _, e := range list.Items {
		all = append(all, fmt.Sprintf("  %s %s: %s", e.InvolvedObject.Kind, e.Reason, e.Message))
	}
	return strings.Join(all, "\n")
}

// tail is the last n lines of a file.
func tail(path string, n int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
