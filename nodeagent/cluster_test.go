package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/berth-storage/berth/nodeagent/internal/fakedriver"
	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/nodeagent/podvolumes"
	podvolumesv1 "github.com/berth-storage/berth/nodeagent/podvolumes/v1"
	"github.com/berth-storage/berth/registrar"
	"github.com/berth-storage/berth/volume"
)

const (
	nodeName   = "n1"
	driverName = "d.example"
	gib        = 1 << 30
)

// cluster is an API, a driver and the folder of a node; agents come and go.
type cluster struct {
	t      *testing.T
	root   string
	api    *fake.Clientset
	driver *fakedriver.Driver
	events *eventrecord.FakeRecorder
	boot   string

	agent *Agent
	stop  func()
	rt    podvolumesv1.PodVolumesClient
	unreg func()
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	root, err := os.MkdirTemp("", "berth-na")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	no := false
	c := &cluster{
		t: t, root: root, driver: fakedriver.New(driverName), boot: "boot-1",
		events: eventrecord.NewFakeRecorder(1000),
		api: fake.NewClientset(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid"}},
			&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no}},
		),
	}
	c.driver.Start(t, c.endpoint())
	return c
}

func (c *cluster) endpoint() string {
	return filepath.Join(c.root, "plugins", driverName, "csi.sock")
}

// start runs an agent and connects a runtime to it.
func (c *cluster) start() {
	c.t.Helper()
	agent, err := New(Config{NodeName: nodeName, Root: c.root, Client: c.api, Host: c.driver, Recorder: c.events, BootID: c.boot})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	conn, err := grpc.NewClient("unix://"+agent.PodVolumesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	stopped := false
	c.stop = func() {
		if stopped {
			return
		}
		stopped = true
		conn.Close()
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("Run: %v", err)
		}
	}
	c.t.Cleanup(func() { c.stop() })
	c.agent, c.rt = agent, podvolumesv1.NewPodVolumesClient(conn)
	c.awaitFile(agent.PluginDir())
	c.awaitFile(agent.PodVolumesSocket())
}

// register announces the driver until unreg or the end of the test.
func (c *cluster) register() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	told := make(chan registrar.Status, 16)
	ended := make(chan error, 1)
	go func() {
		ended <- registrar.Serve(ctx, registrar.Announcement{
			Dir: c.agent.PluginDir(), Driver: driverName, Endpoint: c.endpoint(),
			OnStatus: func(_ context.Context, s registrar.Status) { told <- s },
		})
	}()
	once := false
	c.unreg = func() {
		if once {
			return
		}
		once = true
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("Serve: %v", err)
		}
	}
	c.t.Cleanup(c.unreg)
	if s := <-told; !s.Registered {
		c.t.Fatalf("registration refused: %s", s.Message)
	}
}

func (c *cluster) awaitFile(path string) {
	c.t.Helper()
	c.await("file "+path, func() bool { _, err := os.Lstat(path); return err == nil })
}

// await looks until something is so; the test's own time limit bounds it.
func (c *cluster) await(what string, so func() bool) {
	c.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-c.t.Context().Done():
			c.t.Fatalf("not so: %s", what)
		}
	}
}

// claim makes a bound pair named name.
func (c *cluster) claim(name string, change func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)) {
	c.t.Helper()
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase:    corev1.ClaimBound,
			Capacity: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(gib, resource.BinarySI)},
		},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: "default", Name: name, UID: pvc.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: "h-" + name, FSType: "ext4",
			}},
		},
	}
	if change != nil {
		change(pvc, pv)
	}
	if _, err := c.api.CoreV1().PersistentVolumeClaims("default").Create(c.t.Context(), pvc, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.api.CoreV1().PersistentVolumes().Create(c.t.Context(), pv, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// pod makes a pod on the node that uses the claims, and waits until the agent
// sees it.
func (c *cluster) pod(name string, claims ...string) *podvolumesv1.PodRef {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "c"}}},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "v-" + claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "v-" + claim, MountPath: "/" + claim})
	}
	if _, err := c.api.CoreV1().Pods("default").Create(c.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.await("the agent sees pod "+name, func() bool { return c.agent.source.Snapshot().Pods[string(pod.UID)].State == plan.PodActive })
	return &podvolumesv1.PodRef{Namespace: "default", Name: name, Uid: string(pod.UID)}
}

func (c *cluster) deletePod(ref *podvolumesv1.PodRef) {
	c.t.Helper()
	if err := c.api.CoreV1().Pods(ref.Namespace).Delete(c.t.Context(), ref.Name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.await("the agent sees the end of pod "+ref.Name, func() bool { return c.agent.source.Snapshot().PodState(ref.Uid) == plan.PodAbsent })
}

func (c *cluster) prepare(ref *podvolumesv1.PodRef) []*podvolumesv1.PodVolume {
	c.t.Helper()
	rsp, err := c.rt.Prepare(c.t.Context(), &podvolumesv1.PrepareRequest{Pod: ref}, grpc.WaitForReady(true))
	if err != nil {
		c.t.Fatalf("Prepare: %v", err)
	}
	return rsp.Volumes
}

// refused prepares in vain and returns why. It asks the server itself: over a
// connection the client's own deadline may win, and its error says nothing.
func (c *cluster) refused(ref *podvolumesv1.PodRef, timeout time.Duration) error {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), timeout)
	defer cancel()
	rsp, err := podvolumes.NewServer(c.agent).Prepare(ctx, &podvolumesv1.PrepareRequest{Pod: ref})
	if err == nil {
		c.t.Fatalf("Prepare gave %v", rsp)
	}
	return err
}

func (c *cluster) release(ref *podvolumesv1.PodRef) {
	c.t.Helper()
	if _, err := c.rt.Release(c.t.Context(), &podvolumesv1.ReleaseRequest{PodUid: ref.Uid}, grpc.WaitForReady(true)); err != nil {
		c.t.Fatalf("Release: %v", err)
	}
}

func (c *cluster) staging(claim string) string {
	return plan.StagingPath(c.root, volume.Key{Driver: driverName, Handle: "h-" + claim}, "pv-"+claim, false)
}

func (c *cluster) target(pod, claim string) string {
	return plan.TargetPath(c.root, "uid-"+pod, "pv-"+claim, false)
}

// world holds what is mounted to what should be.
func (c *cluster) world(reason string, wantStaged, wantPublished []string) {
	c.t.Helper()
	slices.Sort(wantStaged)
	slices.Sort(wantPublished)
	staged, published, violations := c.driver.World()
	if diff := cmp.Diff([][]string{wantStaged, wantPublished}, [][]string{staged, published}); diff != "" || len(violations) != 0 {
		c.t.Fatalf("%s: violations %v (-want +got):\n%s", reason, violations, diff)
	}
}

// awaitWorld waits until so much is mounted: a release waits for the pod's
// publications, not for the staging below them.
func (c *cluster) awaitWorld(reason string, staged, published int) {
	c.t.Helper()
	c.await(reason, func() bool { s, p, _ := c.driver.World(); return len(s) == staged && len(p) == published })
}
