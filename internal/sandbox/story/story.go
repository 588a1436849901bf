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

// stepTimeout bounds every wait in the story. It is for a machine that is busy
// with other things; on a quiet one no wait takes a tenth of it.
const stepTimeout = 90 * time.Second

// teller tells the story.
type teller struct {
	*voice
	cluster *sandbox.Cluster
	client  kubernetes.Interface
	machine host.Host
	// scheduler is the one that the story's pods ask for.
	scheduler string

	// roomBefore is what each node's pool had room for at first, in bytes.
	roomBefore map[string]int64
	// set are the pods of the StatefulSet, as last seen.
	set map[string]*corev1.Pod
}

// step is one step of the story.
type step struct {
	title string
	tell  func(context.Context) error
}

func (t *teller) steps() []step {
	return []step{
		{"Three nodes in two zones register", t.nodesRegister},
		{fmt.Sprintf("A StatefulSet of %d is placed by where its volumes can live", replicas), t.setIsPlaced},
		{"A claim grows while its pod runs", t.claimGrows},
		{"A pod is deleted and comes back", t.podComesBack},
		{"A claim finds a volume that is there already", t.volumeIsFound},
		{"One pod has an xfs and an ext4", t.kindsMix},
		{"Claims of an immediate class need no pod", t.claimsAreAssigned},
		{"A claim that no pool can hold says why", t.claimIsTooLarge},
		{"An agent is killed while pods run", t.agentIsKilled},
		{fmt.Sprintf("kube-apiserver is killed while %d pods come up", crowdSize), t.serverIsKilled},
		{"The cluster's default scheduler finds the node with room", t.stockSchedules},
		{"All is deleted, and nothing remains", t.nothingRemains},
	}
}

// Run tells the whole story to out; began is when the clock of its lines
// started. The error is the first check that did not hold.
func Run(ctx context.Context, cluster *sandbox.Cluster, out io.Writer, began time.Time) error {
	client, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("making the client: %w", err)
	}
	t := &teller{voice: newVoice(out, began), cluster: cluster, client: client, machine: cluster.Machine(), scheduler: cluster.SchedulerName()}
	defer t.close()
	if err := t.setUp(ctx); err != nil {
		return err
	}
	for i, s := range t.steps() {
		t.heading(i+1, s.title)
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

// setUp makes the story's namespace and classes.
func (t *teller) setUp(ctx context.Context) error {
	_, err := t.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making namespace %s: %w", namespace, err)
	}
	for _, c := range classes() {
		if _, err := t.client.StorageV1().StorageClasses().Create(ctx, c, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("making class %s: %w", c.Name, err)
		}
	}
	return nil
}

// explain prints what the cluster itself says of a step that failed.
func (t *teller) explain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	pods, err := t.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, p := range pods.Items {
			t.more("pod %s: node %q, %s", p.Name, p.Spec.NodeName, p.Status.Phase)
		}
	}
	claims, err := t.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, c := range claims.Items {
			t.more("claim %s: %s, volume %q, selected node %q", c.Name, c.Status.Phase, c.Spec.VolumeName, c.Annotations[volume.AnnSelectedNode])
		}
	}
	volumes, err := t.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, pv := range volumes.Items {
			t.more("volume %s: %s on %s", pv.Name, pv.Status.Phase, nodeOf(&pv))
		}
	}
	// Those of volumes, which have no namespace, are in another one than the story's.
	events, err := t.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
	if err == nil {
		for _, e := range events.Items {
			t.more("event %s on %s %s: %s", e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
		}
	}
}
