package apply

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/nodeagent/record"
)

// TestLife is the story without faults, and what the driver was told.
func TestLife(t *testing.T) {
	r := newRig(t)
	r.life()
	staging := plan.StagingPath(r.root, key, "pv1", false)
	stage := r.driver.Calls("NodeStageVolume")
	if len(stage) != 1 {
		t.Fatalf("%d stage calls", len(stage))
	}
	s := stage[0].(*csi.NodeStageVolumeRequest)
	m := s.GetVolumeCapability().GetMount()
	if s.StagingTargetPath != staging || s.Secrets["k"] != "v" || s.VolumeContext["a"] != "b" || m.GetFsType() != "ext4" ||
		m.GetMountFlags()[0] != "noatime" || s.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("stage request %v", s)
	}
	p := r.driver.Calls("NodePublishVolume")[0].(*csi.NodePublishVolumeRequest)
	if p.StagingTargetPath != staging || p.TargetPath != plan.TargetPath(r.root, "a", "pv1", false) || p.Readonly ||
		p.VolumeContext["csi.storage.k8s.io/pod.name"] != "pod-a" || p.VolumeContext["a"] != "b" {
		t.Errorf("publish request %v", p)
	}
	if e := r.driver.Calls("NodeExpandVolume"); len(e) != 1 {
		t.Errorf("%d expand calls, want 1", len(e))
	}
}

// TestEveryFault plays the story with one fault, at each point in turn, and
// expects the same end.
func TestEveryFault(t *testing.T) {
	for _, kind := range []fault{crash, final, uncertain} {
		t.Run(string(kind), func(t *testing.T) {
			for at := 0; ; at++ {
				r := newRig(t)
				r.at, r.kind = at, kind
				r.life()
				if r.where == "" {
					if at < 30 {
						t.Fatalf("only %d points", at)
					}
					return
				}
			}
		})
	}
}

// TestRebootAtEveryPoint loses all mounts and the agent, at each point.
func TestRebootAtEveryPoint(t *testing.T) {
	staging := func(r *rig) string { return plan.StagingPath(r.root, key, "pv1", false) }
	for at := 0; ; at++ {
		r := newRig(t)
		r.at, r.kind = at, crash
		r.want(0, "a")
		for _, s := range r.plan().Steps {
			if err := r.runner.Run(t.Context(), s, r.wanted, r.client); err != nil {
				break
			}
		}
		last := r.where == ""
		r.at = -1
		r.driver.Reboot()
		r.boot = "boot-2"
		r.restart()
		r.settle()
		r.world([]string{staging(r)}, []string{plan.TargetPath(r.root, "a", "pv1", false)})
		r.podState["a"] = plan.PodAbsent
		r.want(0)
		r.settle()
		r.world(nil, nil)
		r.nothingLeft()
		if last {
			return
		}
	}
}

// TestPodGoesAtEveryPoint ends the demand in the middle of the set-up, with the
// call's result unknown: the inverse is owed.
func TestPodGoesAtEveryPoint(t *testing.T) {
	for _, kind := range []fault{crash, final, uncertain} {
		for at := 0; ; at++ {
			r := newRig(t)
			r.at, r.kind = at, kind
			r.want(0, "a")
			for _, s := range r.plan().Steps {
				if err := r.runner.Run(t.Context(), s, r.wanted, r.client); err != nil {
					break
				}
			}
			last := r.where == ""
			r.restart()
			r.podState["a"] = plan.PodDeleting
			r.want(0)
			r.settle()
			r.world(nil, nil)
			r.nothingLeft()
			if last {
				break
			}
		}
	}
}

func TestFinalErrorAfterAnUncertainOneStaysUncertain(t *testing.T) {
	r := newRig(t)
	answers := []error{status.Error(codes.DeadlineExceeded, "lost"), status.Error(codes.Internal, "broken")}
	r.driver.Hook = func(method string, after bool) error {
		if method == "NodeStageVolume" && after {
			err := answers[0]
			answers = answers[1:]
			return err
		}
		return nil
	}
	r.want(0, "a")
	for range 2 {
		err := r.runner.Run(t.Context(), r.plan().Steps[0], r.wanted, r.client)
		if _, ok := errors.AsType[*StepError](err); !ok {
			t.Fatalf("error %v", err)
		}
	}
	if got := r.store.Get(key).Stage.State; got != plan.Uncertain {
		t.Errorf("stage is %s; the first call may have staged, and its inverse is owed", got)
	}
}

func TestGrowthThatCannotSucceed(t *testing.T) {
	cases := map[string]struct {
		reason        string
		code          codes.Code
		wantStatus    corev1.ClaimResourceStatus
		wantCondition bool
	}{
		"OutOfRange": {"infeasible: the controller's again", codes.OutOfRange, corev1.PersistentVolumeClaimNodeResizeInfeasible, true},
		"NotFound":   {"infeasible as well", codes.NotFound, corev1.PersistentVolumeClaimNodeResizeInfeasible, true},
		"Internal":   {"will be tried again", codes.Internal, corev1.PersistentVolumeClaimNodeResizeInProgress, true},
		"Timeout":    {"nothing is known, nothing is said", codes.DeadlineExceeded, corev1.PersistentVolumeClaimNodeResizeInProgress, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.driver.Hook = func(method string, after bool) error {
				if method == "NodeExpandVolume" {
					return status.Error(c.code, "words of the driver")
				}
				return nil
			}
			r.want(newSize, "a")
			for _, s := range r.plan().Steps {
				err := r.runner.Run(t.Context(), s, r.wanted, r.client)
				if (err != nil) != (s.Op == plan.OpGrow) {
					t.Fatalf("%s: %v", s, err)
				}
			}
			claim, err := r.api.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "data", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; got != c.wantStatus {
				t.Errorf("%s: status %s, want %s", c.reason, got, c.wantStatus)
			}
			told := false
			for _, k := range claim.Status.Conditions {
				told = told || k.Type == corev1.PersistentVolumeClaimNodeResizeError && strings.Contains(k.Message, "words of the driver")
			}
			if told != c.wantCondition {
				t.Errorf("%s: conditions %v", c.reason, claim.Status.Conditions)
			}
		})
	}
}

func TestDriverThatLeavesItsMount(t *testing.T) {
	r := newRig(t)
	r.want(0, "a")
	r.settle()
	r.podState["a"] = plan.PodAbsent
	r.want(0)
	// The driver says it is done; the mount table says otherwise.
	target := plan.TargetPath(r.root, "a", "pv1", false)
	r.driver.Hook = func(method string, after bool) error {
		if method == "NodeUnpublishVolume" && after {
			r.driver.Published[target] = key.Handle
		}
		return nil
	}
	err := r.runner.Run(t.Context(), r.plan().Steps[0], nil, r.client)
	if err == nil || !strings.Contains(err.Error(), "still mounted") {
		t.Fatalf("error %v", err)
	}
	if got := r.store.Get(key).Pods["a"].Publish.State; got != plan.Uncertain {
		t.Errorf("publication is %s, want uncertain", got)
	}
}

func TestVolumeHandedOutInTheMeantimeStays(t *testing.T) {
	r := newRig(t)
	r.want(0, "a")
	r.settle()
	r.podState["a"] = plan.PodDeleting
	r.want(0)
	step := r.plan().Steps[0]
	if err := r.store.Update(key, func(rec *plan.Record) error {
		p := rec.Pods["a"]
		p.Custody = plan.HandedOut
		rec.Pods["a"] = p
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.runner.Run(t.Context(), step, nil, r.client); err == nil {
		t.Error("unpublished under a pod's feet")
	}
	if got := r.store.Get(key).Pods["a"].Publish.State; got != plan.Done {
		t.Errorf("publication is %s, want done", got)
	}
}

func TestPathsOutsideTheRootAreRefused(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/etc", r.root, r.root + "/../x", "relative", ""} {
		step := plan.Step{Op: plan.OpUnstage, Key: key, Staging: path}
		if err := r.runner.Run(t.Context(), step, nil, r.client); err == nil || !strings.Contains(err.Error(), "not inside") {
			t.Errorf("path %q: %v", path, err)
		}
	}
	if got := r.driver.Calls("NodeUnstageVolume"); len(got) != 0 {
		t.Errorf("the driver was called: %v", got)
	}
}

func TestMissingSecretLeavesNoTrace(t *testing.T) {
	r := newRig(t)
	r.want(0, "a")
	r.wanted.StageSecret.Name = "gone"
	if err := r.runner.Run(t.Context(), r.plan().Steps[0], r.wanted, r.client); err == nil {
		t.Fatal("no error")
	}
	if got := r.store.Keys(); len(got) != 0 {
		t.Errorf("recorded %v, but no call was made", got)
	}
}

func TestAccessModes(t *testing.T) {
	type m = csi.VolumeCapability_AccessMode_Mode
	cases := map[corev1.PersistentVolumeAccessMode][2]m{ // without and with SINGLE_NODE_MULTI_WRITER
		"":                      {csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		corev1.ReadWriteOnce:    {csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		corev1.ReadWriteOncePod: {csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		corev1.ReadOnlyMany:     {csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		corev1.ReadWriteMany:    {csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	}
	for mode, want := range cases {
		for i, multi := range []bool{false, true} {
			if got, err := accessMode(string(mode), multi); got != want[i] || err != nil {
				t.Errorf("%q, multi writer %v: %v %v, want %v", mode, multi, got, err, want[i])
			}
		}
	}
	if _, err := accessMode("Sometimes", true); err == nil {
		t.Error("an unknown mode is mapped")
	}
}

func TestFSGroup(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	for path, mode := range map[string]fs.FileMode{outside: 0o600, filepath.Join(root, "f"): 0o600, filepath.Join(root, "d/g"): 0o444} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := giveToGroup(root, 4242, false); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		root:                       "dgrwxrwx---",
		filepath.Join(root, "f"):   "-rw-rw----",
		filepath.Join(root, "d"):   "dgrwxrwx---",
		filepath.Join(root, "d/g"): "-rw-rw-r--",
		outside:                    "-rw-------",
	} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().String(); got != want && (path != root || !strings.HasPrefix(got, "dgrwxrwx")) {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
		if inside := path != outside; belongs(info, 4242) != inside {
			t.Errorf("%s belongs to the group: %v", path, !inside)
		}
	}
	// With OnRootMismatch a root that is right hides what is wrong below.
	if err := os.Chmod(filepath.Join(root, "f"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := giveToGroup(root, 4242, true); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Lstat(filepath.Join(root, "f")); info.Mode() != 0o600 {
		t.Error("the walk was not skipped")
	}
	if err := giveToGroup(root, 4243, true); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Lstat(filepath.Join(root, "f")); !belongs(info, 4243) {
		t.Error("the walk was skipped though the root differs")
	}
}

var _ Driver = (*csiclient.Client)(nil)

// TestUnfinishedFileIsRemoved leaves what a kill during the writing of
// vol_data.json leaves: it must not keep a volume on the node for ever.
func TestUnfinishedFileIsRemoved(t *testing.T) {
	root := t.TempDir()
	r := New(Config{Root: root})
	target := plan.TargetPath(root, "a", "pv1", false)
	staging := plan.StagingPath(root, key, "pv1", false)
	for _, path := range []string{target, staging} {
		if err := os.MkdirAll(path, 0o750); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(filepath.Dir(path), plan.DataFile)
		for _, f := range []string{file, record.TempName(file)} {
			if err := os.WriteFile(f, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.removeTarget(target, false); err != nil {
		t.Errorf("removing the target: %v", err)
	}
	if err := r.removeStaging(staging, false); err != nil {
		t.Errorf("removing the staging path: %v", err)
	}
	for _, dir := range []string{filepath.Join(root, "pods", "a"), filepath.Dir(staging)} {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}
