package manners_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/test/e2e/rig"
)

// running is a program of ours and what it has said.
type running struct {
	cmd   *exec.Cmd
	ended chan struct{}

	mu   sync.Mutex
	said bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Write(p)
}

func (r *running) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.String()
}

// start starts a program, which is killed at the end of the test if it still runs.
func start(t *testing.T, name string, args ...string) *running {
	t.Helper()
	r := &running{ended: make(chan struct{})}
	r.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(rig.BinDir(t), name), args...)
	r.cmd.Stdout, r.cmd.Stderr = r, r
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // its exit status is looked at in end
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // mostly gone
		<-r.ended
		if t.Failed() {
			t.Logf("%s said:\n%s", name, last(r.text(), 12_000))
		}
	})
	return r
}

func last(text string, n int) string { return text[max(0, len(text)-n):] }

// await waits until something holds, not longer than the program lives or a
// minute.
func (r *running) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !holds() {
		select {
		case <-r.ended:
			t.Fatalf("it ended before: %s", what)
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// end sends the signal and wants the exit status 0, within the minute.
func (r *running) end(t *testing.T, s os.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.ended:
		if got := r.cmd.ProcessState.ExitCode(); got != 0 {
			t.Errorf("exit %d after %v, want 0", got, s)
		}
	case <-time.After(time.Minute):
		t.Fatalf("it does not end after %v", s)
	}
}

var (
	textAddress = regexp.MustCompile(`http="(127\.0\.0\.1:\d+)"`)
	jsonAddress = regexp.MustCompile(`"http":"(127\.0\.0\.1:\d+)"`)
)

// http is where the program says that it listens; empty before.
func (r *running) http() string {
	text := r.text()
	for _, pattern := range []*regexp.Regexp{textAddress, jsonAddress} {
		if m := pattern.FindStringSubmatch(text); m != nil {
			return "http://" + m[1]
		}
	}
	return ""
}

// wantJSON wants each line of the log to be one JSON object with a message.
func (r *running) wantJSON(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(r.text()) {
		var entry struct {
			Msg *string `json:"msg"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Msg == nil {
			t.Errorf("not a JSON log entry: %s", line)
			return
		}
	}
}

// wantSilent wants a secret nowhere in what the program says, or in its arguments.
func (r *running) wantSilent(t *testing.T, secret string) {
	t.Helper()
	if secret == "" || strings.Contains(r.text(), secret) || strings.Contains(strings.Join(r.cmd.Args, " "), secret) {
		t.Error("the token is in the log, or in the arguments")
	}
}

// get asks an endpoint; what cannot be reached is status 0. Certificates are
// the programs' own.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

func wantMetrics(t *testing.T, url string, want ...string) {
	t.Helper()
	status, text := get(t, url)
	if status != http.StatusOK {
		t.Errorf("/metrics: %d", status)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("/metrics lacks %s", w)
		}
	}
}

// accountToken is a token of a shipped service account.
func accountToken(t *testing.T, client kubernetes.Interface, account string) string {
	t.Helper()
	answer, err := client.CoreV1().ServiceAccounts(sandbox.Namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

// token makes a kubeconfig with a token.
func token(server string, ca []byte, secret string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		config := clientcmdapi.NewConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
		config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: secret}
		config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
		config.CurrentContext = "x"
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := clientcmd.WriteToFile(*config, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// schedulerConfig is a profile of the scheduler's plugin, with a leader election.
func schedulerConfig(t *testing.T, kubeconfig string) string {
	t.Helper()
	text := `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: ` + kubeconfig + `}
leaderElection: {leaderElect: true, resourceName: berth-scheduler, resourceNamespace: ` + sandbox.Namespace + `}
profiles:
- schedulerName: berth-scheduler
  plugins:
    multiPoint:
      enabled: [{name: BerthVolumes}]
      disabled: [{name: VolumeBinding}, {name: NodeVolumeLimits}]
`
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// freeAddress is an address of this machine that nobody listens on now.
func freeAddress(t *testing.T) string {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func port(address string) string { return address[strings.LastIndex(address, ":")+1:] }
