package extender_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/test/e2e/rig"
	"github.com/berth-storage/berth/volume"
)

const (
	namespace = "default"
	class     = "berth-local"
	claimSize = 24 * volume.MiB
	// slack is what a pool has beside its claims: less than one of them, and enough
	// for what their images cost beside their bytes.
	slack = 2 * pool.Unit
	// patience bounds the wait for what takes seconds on a quiet machine.
	patience = 4 * time.Minute
)

type world struct {
	t       *testing.T
	cluster *sandbox.Cluster
	client  kubernetes.Interface
	claims  *claims
	// fits is how many claims each node's pool has room for; room its bytes.
	fits map[string]int
	room map[string]int64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := rig.Start(t, sandbox.Options{Nodes: 3, Zones: 1, Extender: true, PoolSizes: map[string]int64{
		"node-1": 760 * volume.MiB, "node-2": 540 * volume.MiB, "node-3": 440 * volume.MiB,
	}})
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, cluster: c, client: client}
}

// fit fills the pools from outside until they have room for exactly so many claims,
// and begins to watch the claims.
func (w *world) fit(n int) {
	w.t.Helper()
	have := w.capacities()
	w.fits, w.room = map[string]int{}, map[string]int64{}
	total := 0
	for node, bytes := range have {
		w.fits[node] = int((bytes - slack) / claimSize)
		total += w.fits[node]
	}
	if total < n {
		w.t.Fatalf("pools of %v fit %d claims, want %d or more", have, total, n)
	}
	for ; total > n; total-- {
		largest := slices.MaxFunc(slices.Sorted(maps.Keys(w.fits)), func(a, b string) int { return w.fits[a] - w.fits[b] })
		w.fits[largest]--
	}
	for _, node := range w.cluster.Nodes() {
		w.room[node.Name] = int64(w.fits[node.Name])*claimSize + slack
		w.fill(node, have[node.Name]-w.room[node.Name])
	}
	w.awaitRoom()
	w.t.Logf("room for claims, by node: %v", w.fits)
	w.claims = watchClaims(w.t, w.client, w.fits)
}

// fill takes the bytes from the node's pool. Its agent is started again, since one
// that runs looks only now and then at what others do to its pool.
func (w *world) fill(node sandbox.Node, bytes int64) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(node.Pool(), "filler"), make([]byte, bytes), 0o600); err != nil {
		w.t.Fatal(err)
	}
	agent, err := w.cluster.Process(node.AgentProcess())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := agent.Kill(); err != nil {
		w.t.Fatal(err)
	}
	<-agent.Done()
	if err := agent.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// capacities are what the nodes publish, in bytes.
func (w *world) capacities() map[string]int64 {
	w.t.Helper()
	list, err := w.client.StorageV1().CSIStorageCapacities(metav1.NamespaceAll).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]int64{}
	for _, c := range list.Items {
		if c.StorageClassName == class {
			out[c.NodeTopology.MatchLabels[volume.TopologyNodeKey]] = c.Capacity.Value()
		}
	}
	return out
}

// awaitRoom waits until the nodes publish the room that they are to have, or a
// little less.
func (w *world) awaitRoom() {
	w.t.Helper()
	w.await("the pools publish their room", func(context.Context) (bool, string) {
		have := w.capacities()
		for node, want := range w.room {
			if got := have[node]; got > want || got < want-slack {
				return false, fmt.Sprintf("%s has %s, want %s", node, volume.FormatBytes(got), volume.FormatBytes(want))
			}
		}
		return true, ""
	})
}

// await waits until look says that it is so; its text is what is the case instead.
func (w *world) await(what string, look func(context.Context) (bool, string)) {
	w.t.Helper()
	last, began := "", time.Now()
	err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		ok, text := look(ctx)
		last = text
		return ok, nil
	})
	if err != nil {
		w.t.Fatalf("%s: %v; now: %s", what, err, last)
	}
	w.t.Logf("%s: after %s", what, time.Since(began).Round(time.Millisecond))
}

// parallel does it for each of the burst, side by side.
func (w *world) parallel(do func(context.Context, int) error) {
	w.t.Helper()
	group, ctx := errgroup.WithContext(w.t.Context())
	group.SetLimit(10)
	for i := range burstSize {
		group.Go(func() error { return do(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) makeClaim(ctx context.Context, name string) error {
	_, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(claimSize, resource.BinarySI),
			}},
		},
	}, metav1.CreateOptions{})
	return err
}

// makePod makes a pod with the claim of its name.
func (w *world) makePod(ctx context.Context, name string) error {
	_, err := w.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulerName:                 w.cluster.SchedulerName(),
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "c", Image: "none", Command: []string{"sleep", "infinity"},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}}},
		},
	}, metav1.CreateOptions{})
	return err
}

// awaitNoPromise waits until berth-extender holds nothing for anybody.
func (w *world) awaitNoPromise() {
	w.t.Helper()
	w.await("no promise is left", func(ctx context.Context) (bool, string) {
		n, err := w.metric(ctx, "berth_extender_promises")
		if err != nil {
			return false, err.Error()
		}
		return n == 0, fmt.Sprintf("%g promises", n)
	})
}

// metric is the value of a metric of berth-extender that has no labels.
func (w *world) metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.cluster.ExtenderHTTP()+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("berth-extender has no metric %s: %s", name, resp.Status)
}

// clear deletes all pods and claims, and waits until their space is free.
func (w *world) clear() {
	w.t.Helper()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}
	if err := w.client.CoreV1().Pods(namespace).DeleteCollection(w.t.Context(), now, metav1.ListOptions{}); err != nil {
		w.t.Fatal(err)
	}
	if err := w.client.CoreV1().PersistentVolumeClaims(namespace).DeleteCollection(w.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.await("nothing is left of the round", func(ctx context.Context) (bool, string) {
		pods, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		pvs, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		return len(pods.Items) == 0 && len(pvs.Items) == 0 && w.claims.len() == 0,
			fmt.Sprintf("%d pods, %d volumes, %d claims", len(pods.Items), len(pvs.Items), w.claims.len())
	})
	w.awaitRoom()
}
