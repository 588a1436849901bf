// Package sandbox_test runs the real binaries of the sandbox: it is started,
// interrupted and killed in every way that users and machines do, and must leave
// nothing behind.
package sandbox_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/internal/sandbox/story"
	"github.com/berth-storage/berth/test/e2e/rig"
)

// command runs berth-sandbox; its output is shown when the test fails.
func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(rig.BinDir(t), "berth-sandbox"), args...)
	cmd.Env = append(os.Environ(), "BERTH_SANDBOX_DATA_DIR="+dir)
	return cmd
}

func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := command(t, dir, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("berth-sandbox %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestStory tells the whole story of `make demo` and of `make demo-extender`.
func TestStory(t *testing.T) {
	for name, options := range map[string]sandbox.Options{
		"berth-scheduler": {},
		"berth-extender":  {Extender: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := rig.Start(t, story.Cluster(options))
			var out bytes.Buffer
			if err := story.Run(t.Context(), c, &out, time.Now()); err != nil {
				t.Errorf("%v\n%s", err, &out)
			}
		})
	}
}

// TestKilledSupervisor kills the supervisor of a running cluster with pods and
// volumes, twice: once `up` follows, once `down`.
func TestKilledSupervisor(t *testing.T) {
	dir := rig.DataDir(t)
	up := []string{"up", "--nodes=2", "--zones=1", "--pool-size=512Mi"}
	for _, next := range [][]string{up, {"down"}} {
		if next[0] == "down" {
			if status := run(t, dir, "status"); !strings.Contains(status, "kube-scheduler") {
				t.Errorf("status does not list kube-scheduler:\n%s", status)
			}
		} else {
			run(t, dir, up...)
		}
		applyPodWithVolume(t, dir)
		state, err := sandbox.ReadState(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := state.Supervisor.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		for _, p := range state.Processes {
			if err := p.ID.Wait(ctx); err != nil {
				t.Errorf("%s outlives the supervisor: %v", p.Name, err)
			}
		}
		cancel()
		if err := sandbox.Leftovers(dir, host.New(host.Options{})); err == nil {
			t.Error("a killed sandbox left nothing: this test proves nothing")
		}
		if out, err := command(t, dir, "status").CombinedOutput(); err == nil || !strings.Contains(string(out), "was killed") {
			t.Errorf("status of a killed sandbox: %v\n%s", err, out)
		}
		run(t, dir, next...)
	}
}

const podWithVolume = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: berth-local
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: main
    image: none
    command: [sh, -c, "echo $HOSTNAME >> /data/log; sync; cat /data/log; sleep 1000"]
    volumeMounts: [{name: data, mountPath: /data}]
`

// applyPodWithVolume makes a pod with a volume, of no scheduler by name, and
// waits until it runs.
func applyPodWithVolume(t *testing.T, dir string) {
	t.Helper()
	cmd := command(t, dir, "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(podWithVolume)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
	run(t, dir, "kubectl", "wait", "--for=condition=Ready", "pod/writer", "--timeout=60s")
}

// TestWithoutStockScheduler: left out, Kubernetes' own scheduler is no process of
// the sandbox, and the pods that name no scheduler are berth-scheduler's, or those of
// the scheduler that asks berth-extender.
func TestWithoutStockScheduler(t *testing.T) {
	for _, scheduler := range []string{"plugin", "extender"} {
		t.Run(scheduler, func(t *testing.T) {
			dir := rig.DataDir(t)
			run(t, dir, "up", "--nodes=1", "--zones=1", "--pool-size=512Mi", "--without=kube-scheduler", "--scheduler="+scheduler)
			if status := run(t, dir, "status"); strings.Contains(status, "kube-scheduler") {
				t.Errorf("status lists what was left out:\n%s", status)
			}
			applyPodWithVolume(t, dir)
			run(t, dir, "down")
		})
	}
}

// TestInterruptedUp interrupts `up` at many moments of its start.
func TestInterruptedUp(t *testing.T) {
	for _, step := range []string{"", "etcd", "storage pools", "kube-apiserver", "kube-scheduler", "manifests", "node agents"} {
		t.Run("after "+step, func(t *testing.T) {
			dir := rig.DataDir(t)
			cmd := command(t, dir, "up", "--nodes=2", "--zones=1")
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			seen := readUntil(t, stdout, step)
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			rest := new(bytes.Buffer)
			if _, err := rest.ReadFrom(stdout); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "cleaned up") {
				t.Errorf("interrupted: %v, %s\n%s%s", err, &stderr, seen, rest)
			}
		})
	}
}

// readUntil reads what `up` says until a line that has the step's name.
func readUntil(t *testing.T, from interface{ Read([]byte) (int, error) }, step string) string {
	t.Helper()
	var seen []byte
	buf := make([]byte, 1)
	for !strings.Contains(string(seen), "  ok  ") || !strings.Contains(string(seen), step) {
		if _, err := from.Read(buf); err != nil {
			t.Fatalf("up ended before %q: %v\n%s", step, err, seen)
		}
		seen = append(seen, buf...)
	}
	return string(seen)
}

// TestRefusals holds what a user is told who asks for what cannot be.
func TestRefusals(t *testing.T) {
	dir := rig.DataDir(t)
	run(t, dir, "up", "--nodes=0")
	cases := map[string]struct {
		reason string
		args   []string
		want   string
	}{
		"second up":    {"one folder, one sandbox", []string{"up", "--nodes=0"}, "a sandbox runs in " + dir},
		"no such size": {"names the flag", []string{"up", "--pool-size=lots"}, "pool-size"},
		"no programs":  {"names the program", []string{"up", "--bin-dir=/etc"}, "has no berth-sandbox"},
		"no such part": {"names the parts", []string{"up", "--without=kubelet"}, "berth-scheduler"},
		"absent pod":   {"names the pod", []string{"logs", "nobody"}, "default/nobody"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out, err := command(t, dir, tc.args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), tc.want) {
				t.Errorf("%s: %v\n%s", tc.reason, err, out)
			}
		})
	}
	run(t, dir, "down")
	if out := run(t, dir, "down"); !strings.Contains(out, "none") {
		t.Errorf("a second down: %s", out)
	}
}

// TestNotRoot: somebody else than root is told so, and nothing is changed.
func TestNotRoot(t *testing.T) {
	dir := rig.DataDir(t)
	for _, args := range [][]string{{"up"}, {"down"}, {"demo", "--data-dir=" + dir}} {
		cmd := command(t, dir, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "root") {
			t.Errorf("%v: exit %d\n%s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}

// TestKilledParts kills the pod runtime and the agent under a pod with a volume,
// each by itself: the volume's data survives, and all of it goes in the end.
func TestKilledParts(t *testing.T) {
	c := rig.Start(t, sandbox.Options{Nodes: 1, PoolSize: sandbox.DefaultPoolSize / 2, KeepRunning: true})
	applyPodWithVolume(t, c.DataDir())
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	node := c.Nodes()[0]
	restarts := restartsOf(t, client)
	for _, name := range []string{node.RuntimeProcess(), node.AgentProcess(), "berth-scheduler", "kube-scheduler", "kube-controller-manager"} {
		p, err := c.Process(name)
		if err != nil {
			t.Fatal(err)
		}
		old := p.ID()
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		await(t, name+" runs again", func() bool { return p.ID() != old && p.ID().Alive() })
		if name == node.RuntimeProcess() {
			// Its containers died with it.
			await(t, "the pod was started again", func() bool { return restartsOf(t, client) > restarts })
			run(t, c.DataDir(), "kubectl", "wait", "--for=condition=Ready", "pod/writer", "--timeout=60s")
		}
	}
	if got := run(t, c.DataDir(), "logs", "writer"); !strings.HasSuffix(got, "writer\nwriter\n") {
		t.Errorf("the volume lost what was written before the kill: the pod says\n%s", got)
	}
	run(t, c.DataDir(), "kubectl", "delete", "pod/writer", "pvc/data", "--timeout=60s")
	await(t, "no volume is left", func() bool {
		pvs, err := client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
		return err == nil && len(pvs.Items) == 0
	})
	mounts, err := c.Machine().MountsUnder(node.Root())
	if err != nil || len(mounts) > 0 {
		t.Errorf("mounts are left: %v, %v", mounts, err)
	}
}

func restartsOf(t *testing.T, client kubernetes.Interface) int32 {
	t.Helper()
	pod, err := client.CoreV1().Pods(corev1.NamespaceDefault).Get(t.Context(), "writer", metav1.GetOptions{})
	if err != nil || len(pod.Status.ContainerStatuses) == 0 {
		t.Fatalf("reading the pod: %v", err)
	}
	return pod.Status.ContainerStatuses[0].RestartCount
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
