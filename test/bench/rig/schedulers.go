package rig

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/host/process"
	"github.com/berth-storage/berth/manifests"
)

// Scheduler is one of the two that are compared.
type Scheduler string

// The schedulers, by the name of their process, of their profile, and of what
// the pods ask for.
const (
	Ours   Scheduler = "berth-scheduler"
	Theirs Scheduler = "kube-scheduler"
)

// Config is the configuration of a scheduler: the shipped one of ours, the
// default one of theirs, each in one profile with the given name; both keep the
// default of everything that is not said, node sampling among it.
func Config(s Scheduler, profile string) (map[string]any, error) {
	config := map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1",
		"kind":       "KubeSchedulerConfiguration",
		"profiles":   []any{map[string]any{}},
	}
	if s == Ours {
		raw, err := manifests.FS.ReadFile("base/scheduler-config.yaml")
		if err != nil {
			return nil, fmt.Errorf("reading the shipped configuration: %w", err)
		}
		if err := yaml.Unmarshal(raw, &config); err != nil {
			return nil, fmt.Errorf("reading the shipped configuration: %w", err)
		}
	}
	profiles, ok := config["profiles"].([]any)
	if !ok || len(profiles) != 1 {
		return nil, errors.New("the shipped configuration of the scheduler has not one profile")
	}
	only, ok := profiles[0].(map[string]any)
	if !ok {
		return nil, errors.New("the profile of the shipped configuration of the scheduler is no mapping")
	}
	only["schedulerName"] = profile
	config["leaderElection"] = map[string]any{"leaderElect": false}
	return config, nil
}

// Running is a scheduler that runs.
type Running struct {
	process *process.Process
	address string
	http    *http.Client
}

// StartScheduler starts a scheduler and returns when its process runs; it needs
// some time more until it has read the cluster.
func (r *Rig) StartScheduler(s Scheduler) (*Running, error) {
	config, err := Config(s, string(s))
	if err != nil {
		return nil, err
	}
	kubeconfig := r.cluster.Kubeconfig()
	config["clientConnection"] = map[string]any{"kubeconfig": kubeconfig, "qps": ClientQPS, "burst": ClientBurst}
	raw, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration of %s: %w", s, err)
	}
	path := filepath.Join(r.cluster.DataDir(), "config", string(s)+".yaml")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return nil, fmt.Errorf("writing the configuration of %s: %w", s, err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := []string{
		"--config=" + path, "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig, "--v=1",
	}
	program := string(s)
	if s == Theirs {
		program, args = "berth-sandbox", append([]string{string(s)}, args...)
	}
	p, err := r.launch(string(s), program, args...)
	if err != nil {
		return nil, err
	}
	client, err := r.profileClient()
	if err != nil {
		return nil, err
	}
	return &Running{process: p, address: "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), http: client}, nil
}

// Done is closed when the scheduler has ended.
func (s *Running) Done() <-chan struct{} { return s.process.Done() }

// Usage is what the scheduler has used.
func (s *Running) Usage() (Usage, error) { return UsageOf(s.process.ID().PID) }

// Err says how a scheduler ended that should run.
func (s *Running) Err() error {
	select {
	case <-s.Done():
		return fmt.Errorf("%s ended: %s; see its log with --keep-logs", s.process.Name(), s.process.Exit())
	default:
		return nil
	}
}

// Profile writes a profile of the scheduler, such as "profile?seconds=10" or
// "heap", to a file. It returns when the scheduler has answered.
func (s *Running) Profile(ctx context.Context, kind, path string) error {
	body, err := s.get(ctx, "/debug/pprof/"+kind)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, body, 0o600); err != nil {
		return fmt.Errorf("writing the profile: %w", err)
	}
	return nil
}

// AwaitReady returns when the scheduler has read the cluster.
func (s *Running) AwaitReady(ctx context.Context) error {
	for {
		_, err := s.get(ctx, "/readyz")
		if err == nil {
			return nil
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-s.Done():
			timer.Stop()
			return s.Err()
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for %s: %w (last answer: %w)", s.process.Name(), ctx.Err(), err)
		case <-timer.C:
		}
	}
}

func (s *Running) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.address+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking %s for %s: %w", s.process.Name(), path, err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking %s for %s: %w", s.process.Name(), path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("asking %s for %s: %w", s.process.Name(), path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking %s for %s: %s: %.300s", s.process.Name(), path, resp.Status, body)
	}
	return body, nil
}

// profileClient is the administrator, with a certificate, for a server whose own
// certificate nobody knows.
func (r *Rig) profileClient() (*http.Client, error) {
	config, err := rest.TLSConfigFor(r.cluster.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client of the scheduler: %w", err)
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, //nolint:gosec // loopback
			Certificates:       config.Certificates, GetClientCertificate: config.GetClientCertificate,
		},
	}}, nil
}

// StartPVController starts kube-controller-manager with nothing but the
// controller that binds claims and volumes.
func (r *Rig) StartPVController() error {
	port, err := freePort()
	if err != nil {
		return err
	}
	kubeconfig := r.cluster.Kubeconfig()
	_, err = r.launch("kube-controller-manager", "berth-sandbox", "kube-controller-manager",
		"--controllers=persistentvolume-binder-controller", "--leader-elect=false",
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--flex-volume-plugin-dir="+filepath.Join(r.cluster.DataDir(), "flexvolume"),
		"--kube-api-qps="+strconv.Itoa(ClientQPS), "--kube-api-burst="+strconv.Itoa(ClientBurst), "--v=1")
	return err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("finding a free port: %s is no TCP address", l.Addr())
	}
	return addr.Port, nil
}
