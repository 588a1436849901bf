// Package story tells the life of claims on a sandbox, step by step, and checks
// each line against the API server and against the machine before it is said.
package story

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

// The story's cast. Room matters: of the three claims, node-1 has room for two
// and node-3 for one, and the roomiest node lies in the wrong zone.
const (
	namespace = "story"
	setName   = "web"
	replicas  = 3
	// class allows zone-1 only.
	class     = "story-zone-1"
	zone      = "zone-1"
	scheduler = "berth-scheduler"

	claimSize = 320 * volume.MiB
	grownSize = 384 * volume.MiB
)

// wantPods is how many of the pods each node has room for.
func wantPods() map[string]int { return map[string]int{"node-1": 2, "node-3": 1} }

// stepTimeout bounds every wait in the story.
const stepTimeout = 30 * time.Second

// Cluster makes the options those of the cluster that the story plays on.
func Cluster(o sandbox.Options) sandbox.Options {
	o.Nodes, o.Zones = 3, 2
	o.PoolSizes = map[string]int64{
		"node-1": 896 * volume.MiB,
		"node-2": 1280 * volume.MiB,
		"node-3": 512 * volume.MiB,
	}
	return o
}

// teller tells the story.
type teller struct {
	cluster *sandbox.Cluster
	client  kubernetes.Interface
	machine host.Host
	out     io.Writer
	began   time.Time

	// roomBefore is what each node's pool had room for at first, in bytes.
	roomBefore map[string]int64
	// pods are the set's pods, as last seen.
	pods map[string]*corev1.Pod
}

// Run tells the whole story to out; began is when the clock of its lines
// started. The error is the first check that did not hold.
func Run(ctx context.Context, cluster *sandbox.Cluster, out io.Writer, began time.Time) error {
	client, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("making the client: %w", err)
	}
	t := &teller{cluster: cluster, client: client, machine: cluster.Machine(), out: out, began: began}
	if err := t.setUp(ctx); err != nil {
		return err
	}
	steps := []struct {
		title string
		tell  func(context.Context) error
	}{
		{"Three nodes in two zones register", t.nodesRegister},
		{fmt.Sprintf("A StatefulSet of %d is placed by where its volumes can live", replicas), t.setIsPlaced},
		{"A claim grows while its pod runs", t.claimGrows},
		{"A pod is deleted and comes back", t.podComesBack},
		{"All is deleted, and nothing remains", t.nothingRemains},
	}
	for i, s := range steps {
		fmt.Fprintf(t.out, "\n%d. %s\n", i+1, s.title)
		if err := s.tell(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			t.explain(context.WithoutCancel(ctx))
			return fmt.Errorf("step %d, %s: %w", i+1, s.title, err)
		}
	}
	return nil
}

// say tells one line; what it says was checked.
func (t *teller) say(format string, args ...any) {
	fmt.Fprintf(t.out, "%6.1fs  ok  %s\n", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...))
}

// explain prints what the cluster itself says of a step that failed.
func (t *teller) explain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	pods, err := t.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, p := range pods.Items {
			fmt.Fprintf(t.out, "         pod %s: node %q, %s\n", p.Name, p.Spec.NodeName, p.Status.Phase)
		}
	}
	claims, err := t.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, c := range claims.Items {
			fmt.Fprintf(t.out, "         claim %s: %s, volume %q, selected node %q\n", c.Name, c.Status.Phase, c.Spec.VolumeName, c.Annotations[volume.AnnSelectedNode])
		}
	}
	events, err := t.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
	if err == nil {
		for _, e := range events.Items {
			fmt.Fprintf(t.out, "         event %s on %s %s: %s\n", e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
		}
	}
}

// setUp makes the story's namespace and class.
func (t *teller) setUp(ctx context.Context) error {
	_, err := t.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making namespace %s: %w", namespace, err)
	}
	if _, err := t.client.StorageV1().StorageClasses().Create(ctx, storageClass(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making class %s: %w", class, err)
	}
	return nil
}
