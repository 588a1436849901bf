// Package manners_test asks of the built programs what an operator asks in the
// first hour: what they say of themselves, how they refuse, whether they are
// ready, what they measure, how they end, and that they keep secrets.
package manners_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/test/e2e/rig"
	"github.com/berth-storage/berth/volume"
)

// TestPrograms: every program that is built says what it is, explains its flags
// in groups, and refuses what it does not know with exit status 1.
func TestPrograms(t *testing.T) {
	programs, err := filepath.Glob(filepath.Join("..", "..", "..", "cmd", "*"))
	if err != nil || len(programs) == 0 {
		t.Fatalf("no program: %v", err)
	}
	for _, path := range programs {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			say := func(arg string) (string, int) {
				cmd := exec.CommandContext(t.Context(), filepath.Join(rig.BinDir(t), name), arg)
				out, err := cmd.CombinedOutput()
				if cmd.ProcessState == nil {
					t.Fatal(err)
				}
				return string(out), cmd.ProcessState.ExitCode()
			}
			if out, status := say("--version"); status != 0 || !strings.HasPrefix(out, name+" version v") || !strings.Contains(out, "(Kubernetes v1.") {
				t.Errorf("--version, exit %d: %s", status, out)
			}
			if out, status := say("--help"); status != 0 || strings.Count(out, ":\n\n")+strings.Count(out, ":\n  ") < 3 {
				t.Errorf("--help has no groups, exit %d: %s", status, out)
			}
			if out, status := say("--no-such-flag"); status != 1 || !strings.Contains(out, "no-such-flag") {
				t.Errorf("an unknown flag, exit %d: %s", status, out)
			}
		})
	}
}

// TestAllAtOnce: every wrong flag is named, with what to give, and nothing starts.
func TestAllAtOnce(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		want   []string
	}{
		"berth-agent": {
			"its own and the common ones",
			[]string{"--node-name=A B", "--pool-dir=pool", "--kube-api-qps=0", "--logging-format=xml"},
			[]string{`--node-name: "A B"`, `--pool-dir: "pool" is not an absolute path`, "--kube-api-qps", "--logging-format", "--help"},
		},
		"berth-scheduler": {
			"its own and Kubernetes'",
			[]string{"--cluster-lease-namespace=A B", "--secure-port=70000"},
			[]string{`--cluster-lease-namespace: "A B"`, "--secure-port"},
		},
		"berth-extender": {
			"those of an open port are all told",
			[]string{"--serve-address=:10269", "--leader-lease=x", "--scheduler-name=A B", "--kube-api-qps=0"},
			[]string{"--tls-cert-file: missing", "--client-ca-file: missing", `--leader-lease: "x"`, `--scheduler-name: "A B"`, "--kube-api-qps", "--help"},
		},
		"berth-sandbox": {
			"of a cluster",
			[]string{"up", "--nodes=-1", "--pool-size=lots", "--without=kubelet"},
			[]string{"--nodes: -1", `--pool-size: "lots"`, `--without: "kubelet"`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(rig.BinDir(t), name), tc.args...)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("%s: %v", tc.reason, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%s: want %q in\n%s", tc.reason, want, out)
				}
			}
		})
	}
}

// TestWithoutAPIServer: an agent whose API server is away lives, is not ready,
// says why, and ends as asked.
func TestWithoutAPIServer(t *testing.T) {
	agent := lonelyAgent(t)
	agent.await(t, "the server's address", func() bool { return agent.http() != "" })
	agent.await(t, "the reason", func() bool {
		status, body := get(t, agent.http()+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "[-]controllers")
	})
	if status, body := get(t, agent.http()+"/healthz"); status != http.StatusOK {
		t.Errorf("it does not live: %d %s", status, body)
	}
	agent.end(t, syscall.SIGTERM)
}

// TestEndsWhileItStarts: an agent that is asked to end while it still starts
// ends, and calls it no failure.
func TestEndsWhileItStarts(t *testing.T) {
	for _, at := range []string{"program starts", "agent starts", "serving pod volumes"} {
		t.Run(at, func(t *testing.T) {
			agent := lonelyAgent(t)
			agent.await(t, "it says so", func() bool { return strings.Contains(agent.text(), at) })
			agent.end(t, syscall.SIGTERM)
		})
	}
}

// lonelyAgent starts an agent whose API server is away.
func lonelyAgent(t *testing.T) *running {
	t.Helper()
	// A short path: sockets lie below it.
	dir, err := os.MkdirTemp("/tmp", "bt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	pool := filepath.Join(dir, "p")
	if err := os.Mkdir(pool, 0o755); err != nil {
		t.Fatal(err)
	}
	access := token("https://127.0.0.1:1", nil, "none")
	return start(t, "berth-agent", "--node-name=edge-1", "--root="+filepath.Join(dir, "r"), "--pool-dir="+pool,
		"--kubeconfig="+access(t), "--http-address=127.0.0.1:0", "--claim-watch=all")
}

// cluster is a control plane with the manifests, one Node that nobody serves, and
// a pool for it.
func cluster(t *testing.T) (*sandbox.Cluster, kubernetes.Interface) {
	t.Helper()
	c := rig.Start(t, sandbox.Options{Nodes: 1, Skip: []sandbox.Component{sandbox.StockScheduler, sandbox.Scheduler, sandbox.Agents, sandbox.Runtimes}})
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.Nodes()[0].Name, Labels: map[string]string{volume.LabelZone: "zone-1"}}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c, client
}

func TestDaemons(t *testing.T) {
	c, client := cluster(t)
	t.Run("agent", func(t *testing.T) { agentManners(t, c, client) })
	t.Run("scheduler", func(t *testing.T) { schedulerManners(t, c, client) })
	t.Run("scheduler alone", func(t *testing.T) { aloneManners(t, c, client) })
}

func agentManners(t *testing.T, c *sandbox.Cluster, client kubernetes.Interface) {
	node := c.Nodes()[0]
	secret := accountToken(t, client, "berth-agent")
	rest := c.RESTConfig()
	agent := start(t, "berth-agent", "--mode=standalone", "--node-name="+node.Name, "--root="+node.Root(), "--pool-dir="+node.Pool(),
		"--kubeconfig="+token(rest.Host, rest.CAData, secret)(t), "--http-address=127.0.0.1:0", "--logging-format=json", "-v=10")
	agent.await(t, "the server's address", func() bool { return agent.http() != "" })
	agent.await(t, "ready", func() bool { status, _ := get(t, agent.http()+"/readyz"); return status == http.StatusOK })
	if _, body := get(t, agent.http()+"/readyz?verbose"); body != "[+]controllers\n[+]driver\n[+]shutdown\n[+]start\nok\n" {
		t.Errorf("checks:\n%s", body)
	}
	agent.await(t, "calls to the driver", func() bool {
		_, metrics := get(t, agent.http()+"/metrics")
		return strings.Contains(metrics, "/csi.v1.Node/NodeGetInfo") && strings.Contains(metrics, "/csi.v1.Identity/Probe")
	})
	agent.await(t, "capacity, which is read, listed and written", func() bool {
		published, err := client.StorageV1().CSIStorageCapacities(sandbox.Namespace).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(published.Items) > 0
	})
	if strings.Contains(agent.text(), "no matches for kind") {
		t.Error("the agent does not know a kind that it uses")
	}
	wantMetrics(t, agent.http()+"/metrics",
		`berth_build_info{go_version="`, `csi_sidecar_operations_seconds_count{`, `grpc_status_code="OK"`,
		`controller_runtime_reconcile_total{controller="`, `workqueue_depth{controller="`, "rest_client_requests_total{", "process_start_time_seconds ")
	agent.end(t, syscall.SIGTERM)
	agent.wantJSON(t)
	agent.wantSilent(t, secret)
}

func schedulerManners(t *testing.T, c *sandbox.Cluster, client kubernetes.Interface) {
	secret := accountToken(t, client, "berth-scheduler")
	rest := c.RESTConfig()
	address := freeAddress(t)
	scheduler := start(t, "berth-scheduler", "--config="+schedulerConfig(t, token(rest.Host, rest.CAData, secret)(t)),
		"--bind-address=127.0.0.1", "--secure-port="+port(address), "--logging-format=json", "-v=10", "--leader-elect-lease-duration=17s",
		"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics")
	url := "https://" + address
	scheduler.await(t, "ready", func() bool { status, _ := get(t, url+"/readyz"); return status == http.StatusOK })
	scheduler.await(t, "the Lease of the cluster-scoped work", func() bool { return lease(t, client, "berth-cluster").holder != "" })
	if got := lease(t, client, "berth-cluster").seconds; got != 17 {
		t.Errorf("the Lease of the cluster-scoped work lasts %d s, not as long as the scheduler's own", got)
	}
	scheduler.await(t, "a round of the cluster-scoped work", func() bool {
		_, metrics := get(t, url+"/metrics")
		return strings.Contains(metrics, `controller_runtime_reconcile_total{controller="cluster",result="success"} `)
	})
	wantMetrics(t, url+"/metrics",
		`berth_build_info{go_version="`, `leader_election_master_status{name="berth-cluster"} 1`, `leader_election_master_status{name="kube-scheduler"} 1`,
		"scheduler_pending_pods{", "workqueue_depth{", "rest_client_requests_total{", `kubernetes_build_info{`)
	scheduler.end(t, syscall.SIGTERM)
	// The next one need not wait until they run out.
	for _, name := range []string{"berth-cluster", "berth-scheduler"} {
		if got := lease(t, client, name).holder; got != "" {
			t.Errorf("Lease %s is still held by %s", name, got)
		}
	}
	scheduler.wantJSON(t)
	scheduler.wantSilent(t, secret)
}

// leaseState is what is looked at in a Lease; empty if there is none.
type leaseState struct {
	holder  string
	seconds int32
}

func lease(t *testing.T, client kubernetes.Interface, name string) leaseState {
	t.Helper()
	l, err := client.CoordinationV1().Leases(sandbox.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return leaseState{}
	case err != nil:
		t.Fatal(err)
	}
	return leaseState{holder: ptr.Deref(l.Spec.HolderIdentity, ""), seconds: ptr.Deref(l.Spec.LeaseDurationSeconds, 0)}
}

// aloneManners: without an election, and without the cluster-scoped work, the end
// is as orderly.
func aloneManners(t *testing.T, c *sandbox.Cluster, client kubernetes.Interface) {
	rest := c.RESTConfig()
	kubeconfig := token(rest.Host, rest.CAData, accountToken(t, client, "berth-scheduler"))(t)
	address := freeAddress(t)
	scheduler := start(t, "berth-scheduler", "--config="+schedulerConfig(t, kubeconfig), "--leader-elect=false", "--cluster-work=false",
		"--bind-address=127.0.0.1", "--secure-port="+port(address))
	scheduler.await(t, "ready", func() bool { status, _ := get(t, "https://"+address+"/readyz"); return status == http.StatusOK })
	scheduler.end(t, os.Interrupt)
}
