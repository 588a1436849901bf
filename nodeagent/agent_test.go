package nodeagent

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/berth-storage/berth/nodeagent/internal/fakedriver"
	podvolumesv1 "github.com/berth-storage/berth/nodeagent/podvolumes/v1"
	"github.com/berth-storage/berth/volume"
)

func TestLifeOfAPod(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.register()
	csiNode, err := c.api.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || len(csiNode.Spec.Drivers) != 1 || csiNode.Spec.Drivers[0].NodeID != "id-of-node" {
		t.Fatalf("CSINode %v %v", csiNode, err)
	}
	c.claim("data", nil)
	c.claim("logs", nil)
	pod := c.pod("web-0", "logs", "data")
	got := c.prepare(pod)
	if len(got) != 2 || got[0].Name != "v-logs" || got[0].Path != c.target("web-0", "logs") || got[1].Path != c.target("web-0", "data") || got[0].Block || got[0].ReadOnly {
		t.Fatalf("prepared %v", got)
	}
	c.world("after Prepare", []string{c.staging("data"), c.staging("logs")},
		[]string{c.target("web-0", "data"), c.target("web-0", "logs")})

	// Once more: the same answer, and no further call.
	calls := len(c.driver.Calls("NodePublishVolume"))
	c.prepare(pod)
	if got := len(c.driver.Calls("NodePublishVolume")); got != calls {
		t.Errorf("%d publications, want %d", got, calls)
	}

	c.release(pod)
	c.awaitWorld("after Release", 0, 0)
	c.world("after Release", nil, nil)
	if err := c.refused(pod, time.Minute); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Prepare after Release: %v", err)
	}
	c.deletePod(pod)
	c.await("the record is empty", func() bool { return len(c.agent.store.Keys()) == 0 })
}

func TestAgentRestartsUnderRunningPods(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.register()
	c.claim("data", nil)
	pod := c.pod("web-0", "data")
	c.prepare(pod)
	c.unreg()
	c.stop()

	c.start()
	c.register()
	c.prepare(pod)
	if stages, publishes := len(c.driver.Calls("NodeStageVolume")), len(c.driver.Calls("NodePublishVolume")); stages != 1 || publishes != 1 {
		t.Errorf("%d stage and %d publish calls, want one each", stages, publishes)
	}
	// The object goes while the agent is down; the processes stay.
	c.unreg()
	c.stop()
	if err := c.api.CoreV1().Pods("default").Delete(t.Context(), "web-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.start()
	c.register()
	c.await("the agent has read the pods", func() bool { return c.agent.source.Snapshot().Settled })
	probe := func() { // everything queued before this pod's volume was looked at
		c.claim("probe", nil)
		c.prepare(c.pod("probe", "probe"))
	}
	probe()
	c.world("the runtime has said nothing", []string{c.staging("data"), c.staging("probe")}, []string{c.target("probe", "probe"), c.target("web-0", "data")})
	c.release(pod)
	c.awaitWorld("released", 1, 1)
	c.world("released", []string{c.staging("probe")}, []string{c.target("probe", "probe")})
}

func TestRebootAndReport(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.register()
	c.claim("data", nil)
	c.claim("gone", nil)
	stays, goes := c.pod("web-0", "data"), c.pod("web-1", "gone")
	c.prepare(stays)
	c.prepare(goes)
	c.unreg()
	c.stop()

	// Power loss; one pod's object was deleted in the meantime.
	c.driver.Reboot()
	c.boot = "boot-2"
	if err := c.api.CoreV1().Pods("default").Delete(t.Context(), "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.start()
	c.register()
	if _, err := c.rt.Report(t.Context(), &podvolumesv1.ReportRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	c.prepare(stays)
	c.await("the pod that is gone leaves no record", func() bool { return len(c.agent.store.Keys()) == 1 })
	c.world("after the reboot", []string{c.staging("data")}, []string{c.target("web-0", "data")})
	c.release(stays)
	c.awaitWorld("released", 0, 0)
	c.world("released", nil, nil)
}

func TestPodThatWasNeverHandedOut(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.register()
	c.claim("data", nil)
	pod := c.pod("web-0", "data")
	c.awaitWorld("published without being asked", 1, 1)
	c.deletePod(pod)
	c.awaitWorld("taken back without being asked", 0, 0)
	c.await("no record", func() bool { return len(c.agent.store.Keys()) == 0 })
}

// TestReplacedClaim deletes a claim under a running pod and makes it anew with
// another volume, as after its finalizer was taken out.
func TestReplacedClaim(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.register()
	c.claim("data", nil)
	pod := c.pod("web-0", "data")
	c.prepare(pod)
	former := c.target("web-0", "data")
	if err := c.api.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.claim("data", func(pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
		pvc.UID, pvc.Spec.VolumeName = "claim-data-2", "pv-data-2"
		pv.Name, pv.Spec.ClaimRef.UID, pv.Spec.CSI.VolumeHandle = "pv-data-2", "claim-data-2", "h-data-2"
	})
	other := volume.Key{Driver: driverName, Handle: "h-data-2"}
	told := func() bool {
		if c.agent.source.Snapshot().Volumes[other] == nil {
			return false
		}
		s, _ := c.agent.Status(pod.Uid)
		return len(s.Volumes) == 1 && (s.Volumes[0].Ready || strings.Contains(s.Volumes[0].Why, volume.ReasonClaimReplaced.Sentence()))
	}
	c.await("the new claim is looked at", told)
	if err := c.refused(pod, 300*time.Millisecond); !strings.Contains(err.Error(), "delete the pod") {
		t.Errorf("Prepare: %v, want the reason and the remedy", err)
	}
	c.world("the claim is another one", []string{c.staging("data")}, []string{former})

	// The record knows it after a restart, too.
	c.unreg()
	c.stop()
	c.start()
	c.register()
	c.await("the new claim is looked at again", told)
	c.world("after a restart", []string{c.staging("data")}, []string{former})

	c.release(pod)
	c.awaitWorld("released", 0, 0)
	c.deletePod(pod)
	c.await("the record is empty", func() bool { return len(c.agent.store.Keys()) == 0 })
}

func TestPrepareSaysWhatIsMissing(t *testing.T) {
	cases := map[string]struct {
		reason string
		setUp  func(c *cluster)
		want   string
	}{
		"Driver": {"no registration", func(c *cluster) { c.claim("data", nil) }, `volume "v-data": CSI driver is not installed on the node: driver d.example`},
		"Unbound": {"the claim waits", func(c *cluster) {
			c.claim("data", func(pvc *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
				pvc.Status.Phase = corev1.ClaimPending
			})
		}, "unbound immediate PersistentVolumeClaims: claim default/data"},
		"NoClaim": {"no such object", func(*cluster) {}, "persistentvolumeclaim not found: claim default/data"},
		"Attach": {"a driver without CSIDriver needs attaching", func(c *cluster) {
			c.claim("data", func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
				pv.Spec.CSI.Driver = "other.example"
			})
		}, "attachRequired: false"},
		"Failing": {"the driver's own words", func(c *cluster) {
			c.claim("data", nil)
			c.driver.Hook = func(method string, _ bool) error {
				if method == "NodeStageVolume" {
					return status.Error(codes.Internal, "the disk is on fire")
				}
				return nil
			}
			c.register()
		}, "the disk is on fire"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.start()
			tc.setUp(c)
			pod := c.pod("web-0", "data")
			// The reason is waited for first: the deadline below only ends the call.
			c.await(tc.reason, func() bool {
				s, _ := c.agent.Status(pod.Uid)
				return len(s.Volumes) == 1 && strings.Contains(`volume "v-data": `+s.Volumes[0].Why, tc.want)
			})
			err := c.refused(pod, 300*time.Millisecond)
			if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
			if event := <-c.events.Events; !strings.Contains(event, "FailedMount") {
				t.Errorf("%s: event %q", tc.reason, event)
			}
		})
	}
}

func TestPrepareRefuses(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.register()
	c.claim("data", nil)
	pod := c.pod("web-0", "data")
	for name, tc := range map[string]struct {
		ref  *podvolumesv1.PodRef
		want codes.Code
	}{
		"unknown pod":   {&podvolumesv1.PodRef{Namespace: "default", Name: "nobody", Uid: "x"}, codes.NotFound},
		"other uid":     {&podvolumesv1.PodRef{Namespace: "default", Name: "web-0", Uid: "older"}, codes.NotFound},
		"other name":    {&podvolumesv1.PodRef{Namespace: "default", Name: "web-9", Uid: pod.Uid}, codes.NotFound},
		"nothing named": {&podvolumesv1.PodRef{}, codes.InvalidArgument},
	} {
		if err := c.refused(tc.ref, time.Minute); status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	if _, err := c.rt.Release(t.Context(), &podvolumesv1.ReleaseRequest{PodUid: "nobody"}); err != nil {
		t.Errorf("Release of an unknown pod: %v", err)
	}
}

func TestGrowWhileMounted(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.register()
	c.claim("data", nil)
	pod := c.pod("web-0", "data")
	c.prepare(pod)
	claims := c.api.CoreV1().PersistentVolumeClaims("default")
	pvc, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pvc.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(3*gib, resource.BinarySI)}
	pvc.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
	if _, err := claims.UpdateStatus(t.Context(), pvc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("the claim has its new size", func() bool {
		now, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		size := now.Status.Capacity[corev1.ResourceStorage]
		return size.Value() == 3*gib && len(now.Status.AllocatedResourceStatuses) == 0
	})
	if got := c.driver.Size("h-data"); got != 3*gib {
		t.Errorf("the volume has %d bytes", got)
	}
}

func TestDriverThatIsAway(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.register()
	c.claim("data", nil)
	pod := c.pod("web-0", "data")
	c.prepare(pod)
	c.unreg()
	c.await("the driver is out", func() bool { return c.agent.drivers.get(driverName) == nil })
	ended := make(chan error, 1)
	go func() {
		_, err := c.rt.Release(t.Context(), &podvolumesv1.ReleaseRequest{PodUid: pod.Uid})
		ended <- err
	}()
	c.await("the release is recorded", func() bool { s, _ := c.agent.Status(pod.Uid); return s.Released })
	c.world("no driver, no unpublish", []string{c.staging("data")}, []string{c.target("web-0", "data")})
	c.register()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	c.awaitWorld("the driver is back", 0, 0)
	c.world("the driver is back", nil, nil)
}

func TestOneAgentPerRoot(t *testing.T) {
	c := newCluster(t)
	c.start()
	second, err := New(Config{NodeName: nodeName, Root: c.root, Client: c.api, Host: c.driver, Recorder: c.events, BootID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another berth-agent") {
		t.Errorf("a second agent: %v", err)
	}
}

func TestKubeletOwnsTheNode(t *testing.T) {
	c := newCluster(t)
	dir := filepath.Join(c.root, "pod-resources")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	agent, err := New(Config{NodeName: nodeName, Root: c.root, Client: c.api, Host: c.driver, Recorder: c.events, BootID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "a kubelet answers") {
		t.Errorf("beside a kubelet: %v", err)
	}
	// A socket that a kubelet left behind is no kubelet.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := refuseKubelet(t.Context(), c.root); err != nil {
		t.Errorf("a dead socket: %v", err)
	}
}

func TestConfig(t *testing.T) {
	good := Config{NodeName: "n", Root: "/r", Client: fake.NewClientset(), Host: fakedriver.New("d"), Recorder: eventrecord.NewFakeRecorder(1)}
	if _, err := New(good); err != nil {
		t.Errorf("a good config: %v", err)
	}
	for name, spoil := range map[string]func(*Config){
		"NodeName": func(c *Config) { c.NodeName = "" },
		"Root":     func(c *Config) { c.Root = "relative" },
		"Client":   func(c *Config) { c.Client = nil },
		"Host":     func(c *Config) { c.Host = nil },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v does not name it", name, err)
		}
	}
}
