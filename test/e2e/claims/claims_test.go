// Package claims_test follows claims on a cluster of real processes, beyond the
// one life that the story tells.
package claims_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/test/e2e/rig"
	"github.com/berth-storage/berth/volume"
)

const (
	namespace = "default"
	// patience bounds the wait for what takes seconds on a quiet machine.
	patience = 90 * time.Second
)

type world struct {
	t       *testing.T
	cluster *sandbox.Cluster
	client  kubernetes.Interface
}

func newWorld(t *testing.T, nodes int) *world {
	t.Helper()
	c := rig.Start(t, sandbox.Options{Nodes: nodes, Zones: 1, PoolSize: sandbox.DefaultPoolSize, KeepRunning: true})
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, cluster: c, client: client}
}

func (w *world) claim(name, class, size string) {
	w.t.Helper()
	_, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Create(w.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

// pod runs a pod with the claim.
func (w *world) pod(name, claim string, change func(*corev1.PodSpec)) {
	w.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulerName: "berth-scheduler",
			Containers: []corev1.Container{{
				Name: "c", Image: "none", Command: []string{"sleep", "infinity"},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	change(&pod.Spec)
	if _, err := w.client.CoreV1().Pods(namespace).Create(w.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func prefers(node string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: volume.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}},
		}}
	}
}

// await waits until look says that it is so; its text is what is the case instead.
func (w *world) await(what string, look func(context.Context) (bool, string)) {
	w.t.Helper()
	last := ""
	err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		ok, text := look(ctx)
		last = text
		return ok, nil
	})
	if err != nil {
		w.t.Fatalf("%s: %v; now: %s", what, err, last)
	}
}

func (w *world) awaitRunning(pod string) (node string) {
	w.t.Helper()
	w.await("pod "+pod+" runs", func(ctx context.Context) (bool, string) {
		p, err := w.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		node = p.Spec.NodeName
		return p.Status.Phase == corev1.PodRunning, fmt.Sprintf("%s on %q; %s", p.Status.Phase, node, w.events(ctx, pod))
	})
	return node
}

// events are the messages of an object's events.
func (w *world) events(ctx context.Context, name string) string {
	list, err := w.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, e := range list.Items {
		all = append(all, e.Reason+": "+e.Message)
	}
	return strings.Join(all, "\n")
}

// TestImmediate binds claims without a pod, spread over the nodes, and says of a
// claim that fits nowhere why.
func TestImmediate(t *testing.T) {
	w := newWorld(t, 2)
	const claims = 4
	for i := range claims {
		w.claim(fmt.Sprintf("data-%d", i), "berth-immediate", "100Mi")
	}
	w.claim("huge", "berth-immediate", "1Ti")
	w.await("claims are bound", func(ctx context.Context) (bool, string) {
		list, err := w.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		bound := 0
		for _, c := range list.Items {
			if c.Status.Phase == corev1.ClaimBound {
				bound++
			}
		}
		return bound == claims, fmt.Sprintf("%d of %d bound", bound, claims)
	})
	pvs, err := w.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	perNode := map[string]int{}
	for _, pv := range pvs.Items {
		perNode[pv.Labels[volume.LabelNode]]++
	}
	if diff := cmp.Diff(map[string]int{"node-1": claims / 2, "node-2": claims / 2}, perNode); diff != "" {
		t.Errorf("volumes a node (-want +got):\n%s", diff)
	}
	w.await("the claim that fits nowhere says why", func(ctx context.Context) (bool, string) {
		text := w.events(ctx, "huge")
		return strings.Contains(text, "2 node(s) did not have enough free storage"), text
	})
}

// TestPlacedByHand puts a pod on a node without a scheduler: its claim is
// provisioned there all the same, and the pod says who did it. A claim larger
// than the node says why it waits.
func TestPlacedByHand(t *testing.T) {
	w := newWorld(t, 2)
	onNode := func(s *corev1.PodSpec) { s.NodeName = "node-2" }
	w.claim("data", "berth-local", "100Mi")
	w.pod("p", "data", onNode)
	if on := w.awaitRunning("p"); on != "node-2" {
		t.Errorf("the pod runs on %s", on)
	}
	w.await("the pod says who bound its claim", func(ctx context.Context) (bool, string) {
		text := w.events(ctx, "p")
		return strings.Contains(text, "BoundWithoutScheduler: the pod was put on its node without a scheduler; claim data: node node-2 is to provide the volume"), text
	})
	w.claim("huge", "berth-local", "1Ti")
	w.pod("q", "huge", onNode)
	w.await("the pod says why its claim waits", func(ctx context.Context) (bool, string) {
		text := w.events(ctx, "q")
		return strings.Contains(text, "claim huge cannot be bound there: the provisioner gave node node-2 back"), text
	})
	if err := w.client.CoreV1().Pods(namespace).Delete(t.Context(), "q", metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}); err != nil {
		t.Fatal(err)
	}
	w.remove("p", "data")
}

// TestStolenSpace fills a pool from outside: the pod goes where there is room,
// though it prefers the full node, and the capacity comes back with the space.
func TestStolenSpace(t *testing.T) {
	w := newWorld(t, 2)
	node, err := w.cluster.Node("node-1")
	if err != nil {
		t.Fatal(err)
	}
	before := w.capacity("node-1")
	junk := filepath.Join(node.Pool(), "junk")
	if err := os.WriteFile(junk, make([]byte, before-50*volume.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	w.claim("data", "berth-local", "200Mi")
	w.pod("p", "data", prefers("node-1"))
	if on := w.awaitRunning("p"); on != "node-2" {
		t.Errorf("the pod runs on %s, which has no room", on)
	}
	w.await("the published capacity follows", func(context.Context) (bool, string) {
		now := w.capacity("node-1")
		return now < 100*volume.MiB, volume.FormatBytes(now)
	})
	if err := os.Remove(junk); err != nil {
		t.Fatal(err)
	}
	w.await("the capacity comes back", func(context.Context) (bool, string) {
		now := w.capacity("node-1")
		return now == before, volume.FormatBytes(now) + ", before " + volume.FormatBytes(before)
	})
	w.remove("p", "data")
}

// capacity is what a node publishes for class berth-local.
func (w *world) capacity(node string) int64 {
	w.t.Helper()
	list, err := w.client.StorageV1().CSIStorageCapacities(metav1.NamespaceAll).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range list.Items {
		if c.StorageClassName == "berth-local" && c.NodeTopology.MatchLabels[volume.TopologyNodeKey] == node {
			return c.Capacity.Value()
		}
	}
	w.t.Fatalf("node %s publishes no capacity of class berth-local", node)
	return 0
}

func (w *world) remove(pod, claim string) {
	w.t.Helper()
	now := int64(0)
	if err := w.client.CoreV1().Pods(namespace).Delete(w.t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}); err != nil {
		w.t.Fatal(err)
	}
	if err := w.client.CoreV1().PersistentVolumeClaims(namespace).Delete(w.t.Context(), claim, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		w.t.Fatal(err)
	}
	w.await("nothing is left of the volume", func(ctx context.Context) (bool, string) {
		pvs, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		return len(pvs.Items) == 0, fmt.Sprintf("%d volumes", len(pvs.Items))
	})
}
