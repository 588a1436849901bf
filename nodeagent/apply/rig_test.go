package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/nodeagent/internal/fakedriver"
	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/nodeagent/record"
	"github.com/berth-storage/berth/volume"
)

var key = volume.Key{Driver: "d.example", Handle: "h1"}

const oldSize, newSize = 1 << 30, 2 << 30

var errDead = errors.New("the agent is dead")

// fault is what goes wrong at a point: before or after a write of the record,
// before or after the effect of a call.
type fault string

const (
	none      fault = "none"
	crash     fault = "crash"     // the agent dies at the point
	final     fault = "final"     // the call fails for good; the write fails
	uncertain fault = "uncertain" // the call's answer is lost
)

// rig is an agent reduced to plan and apply, around a world that stays.
type rig struct {
	t      *testing.T
	root   string
	driver *fakedriver.Driver
	client *csiclient.Client
	api    *fake.Clientset
	runner *Runner
	store  *record.Store

	boot     string
	wanted   *plan.Wanted
	podState map[string]plan.PodState

	points int
	at     int
	kind   fault
	where  string
	dead   bool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp(memory(), "berth-apply")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	r := &rig{
		t: t, root: root, driver: fakedriver.New(key.Driver), boot: "boot-1", at: -1,
		api:      fake.NewClientset(growingClaim(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "s", Name: "stage"}, Data: map[string][]byte{"k": []byte("v")}}),
		podState: map[string]plan.PodState{},
	}
	r.driver.Hook = func(method string, after bool) error { return r.point(method, after, true) }
	socket := filepath.Join(root, "csi.sock")
	r.driver.Start(t, socket)
	if r.client, err = csiclient.New(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.client.Close() })
	r.restart()
	return r
}

// memory is a folder in memory where there is one: the faults together sync
// thousands of files.
func memory() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}

func growingClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim-uid", ResourceVersion: "1"},
		Status: corev1.PersistentVolumeClaimStatus{
			Capacity:           corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(oldSize, resource.BinarySI)},
			AllocatedResources: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(newSize, resource.BinarySI)},
			AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{
				corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
			},
			Conditions: []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
				{Type: "Other", Status: corev1.ConditionTrue},
			},
		},
	}
}

// restart is a new agent over what the old one left.
func (r *rig) restart() {
	r.t.Helper()
	r.dead = false
	store, asides, err := record.Open(filepath.Join(r.root, "berth/record"), r.boot)
	if err != nil || len(asides) != 0 {
		r.t.Fatalf("opening the record: %v, unreadable: %v", err, asides)
	}
	r.store = store
	r.runner = New(Config{
		Root: r.root, NodeName: "n1", Record: r, Mounts: r.driver,
		Secrets: r.api.CoreV1(), Claims: r.api.CoreV1(),
	})
}

// point is a place where something may go wrong.
func (r *rig) point(name string, after, isCall bool) error {
	if r.dead {
		return status.Error(codes.Unavailable, errDead.Error())
	}
	r.points++
	if r.points-1 != r.at {
		return nil
	}
	r.where = fmt.Sprintf("%s after=%v", name, after)
	switch r.kind {
	case crash:
		r.dead = true
		return status.Error(codes.Unavailable, errDead.Error())
	case uncertain:
		return status.Error(codes.DeadlineExceeded, "lost")
	case final:
		if isCall && after {
			// A driver that says "failed" has left nothing: not after the effect.
			return status.Error(codes.Unavailable, "lost")
		}
		return status.Error(codes.Internal, "broken")
	case none:
	}
	return nil
}

// Get and Update make the rig the runner's record.
func (r *rig) Get(k volume.Key) plan.Record { return r.store.Get(k) }

func (r *rig) Update(k volume.Key, change func(*plan.Record) error) error {
	if err := r.point("record", false, false); err != nil {
		return err
	}
	if err := r.store.Update(k, change); err != nil {
		return err
	}
	return r.point("record", true, false)
}

func (r *rig) plan() plan.Plan {
	mounted := map[string]bool{}
	rows, err := r.driver.MountsUnder(r.root)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range rows {
		mounted[m.Target] = true
	}
	return plan.Next(plan.Input{
		Root: r.root, Wanted: r.wanted, Synced: true, Record: r.store.Get(key), Mounted: mounted,
		Driver: plan.Driver{Registered: true, Stages: true, Grows: true}, PodState: r.podState,
	})
}

// settle plans and applies until nothing is left to do, and restarts an agent
// that died.
func (r *rig) settle() {
	r.t.Helper()
	for range 12 {
		p := r.plan()
		if len(p.Steps) == 0 {
			return
		}
		for _, s := range p.Steps {
			if err := r.runner.Run(r.t.Context(), s, r.wanted, r.client); err != nil {
				break
			}
		}
		if r.dead {
			r.restart()
		}
	}
	r.t.Fatalf("fault %s at %s: does not come to rest: %v", r.kind, r.where, r.plan().Steps)
}

func (r *rig) want(grow int64, uids ...string) {
	r.wanted = nil
	if len(uids) == 0 {
		return
	}
	r.wanted = &plan.Wanted{
		Key: key, PV: "pv1", PVC: plan.Claim{Namespace: "default", Name: "data", UID: "claim-uid"},
		FSType: "ext4", MountOptions: []string{"noatime"}, AccessMode: string(corev1.ReadWriteOnce),
		Context: map[string]string{"a": "b"}, StageSecret: plan.SecretRef{Namespace: "s", Name: "stage"}, GrowTo: grow,
	}
	for _, uid := range uids {
		r.podState[uid] = plan.PodActive
		r.wanted.Pods = append(r.wanted.Pods, plan.PodUse{
			Pod:  plan.Pod{Namespace: "default", Name: "pod-" + uid, UID: uid},
			Name: "v", PodInfo: map[string]string{"csi.storage.k8s.io/pod.name": "pod-" + uid},
		})
	}
}

// life is the whole story: two pods get the volume, it grows, one pod goes, the
// other follows.
func (r *rig) life() {
	r.t.Helper()
	staging := plan.StagingPath(r.root, key, "pv1", false)
	a, b := plan.TargetPath(r.root, "a", "pv1", false), plan.TargetPath(r.root, "b", "pv1", false)

	r.want(newSize, "a", "b")
	r.settle()
	r.world([]string{staging}, []string{a, b})
	r.files("globalmount beside its data file", filepath.Join(filepath.Dir(staging), plan.DataFile), filepath.Join(filepath.Dir(a), plan.DataFile))
	if got := r.driver.Size(key.Handle); got != newSize {
		r.t.Fatalf("fault %s at %s: size %d, want %d", r.kind, r.where, got, int64(newSize))
	}
	r.claimIsGrown()

	r.podState["a"] = plan.PodDeleting
	r.want(0, "b")
	r.settle()
	r.world([]string{staging}, []string{b})

	r.podState["b"] = plan.PodAbsent
	r.want(0)
	r.settle()
	r.world(nil, nil)
	r.nothingLeft()
}

func (r *rig) world(wantStaged, wantPublished []string) {
	r.t.Helper()
	staged, published, violations := r.driver.World()
	if diff := cmp.Diff([][]string{wantStaged, wantPublished}, [][]string{staged, published}); diff != "" || len(violations) != 0 {
		r.t.Fatalf("fault %s at %s: violations %v, world (-want +got):\n%s", r.kind, r.where, violations, diff)
	}
}

func (r *rig) files(what string, paths ...string) {
	r.t.Helper()
	for _, p := range paths {
		if info, err := os.Stat(p); err != nil || info.Size() == 0 {
			r.t.Fatalf("fault %s at %s: %s: %v", r.kind, r.where, what, err)
		}
	}
}

func (r *rig) claimIsGrown() {
	r.t.Helper()
	c, err := r.api.CoreV1().PersistentVolumeClaims("default").Get(r.t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	size := c.Status.Capacity[corev1.ResourceStorage]
	if size.Value() != newSize || len(c.Status.AllocatedResourceStatuses) != 0 || len(c.Status.Conditions) != 1 || c.Status.Conditions[0].Type != "Other" {
		r.t.Fatalf("fault %s at %s: claim status %+v", r.kind, r.where, c.Status)
	}
}

// nothingLeft holds the folders to what they were before the first step.
func (r *rig) nothingLeft() {
	r.t.Helper()
	var left []string
	err := filepath.WalkDir(r.root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && (!e.IsDir() || strings.HasSuffix(path, "globalmount")) && e.Name() != "csi.sock" {
			left = append(left, path)
		}
		return err
	})
	if err != nil || len(left) != 0 {
		r.t.Fatalf("fault %s at %s: left behind %v %v", r.kind, r.where, left, err)
	}
	if _, err := os.Stat(filepath.Join(r.root, "pods", "a")); !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatalf("fault %s at %s: the pod's folder is left: %v", r.kind, r.where, err)
	}
}
