package sandbox

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/manifests"
)

// startScheduler starts berth-scheduler with the rights and the configuration
// that are shipped.
func (c *Cluster) startScheduler(ctx context.Context) error {
	kubeconfig, err := c.componentConfig(ctx, "berth-scheduler")
	if err != nil {
		return err
	}
	config, err := shippedSchedulerConfig(schedulerConfigFile, kubeconfig, !c.options.has(StockScheduler))
	if err != nil {
		return err
	}
	return c.runScheduler(ctx, "berth-scheduler", config, c.ports.scheduler, c.program("berth-scheduler"), "--v=2")
}

// startStockScheduler starts Kubernetes' own scheduler, which serves the pods
// that name none, with its default plugins and its own user.
func (c *Cluster) startStockScheduler(ctx context.Context) error {
	const name = "kube-scheduler"
	user, err := c.access.client("system:kube-scheduler")
	if err != nil {
		return err
	}
	kubeconfig := c.dir.configPath(name)
	if err := writeConfig(kubeconfig, user); err != nil {
		return err
	}
	config := map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1",
		"kind":       "KubeSchedulerConfiguration",
	}
	setConnection(config, kubeconfig)
	return c.runScheduler(ctx, name, config, c.ports.stockScheduler, c.program("berth-sandbox"), name,
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig, "--v=1")
}

// setConnection points a scheduler at the sandbox, without a leader election: a
// scheduler that was killed must not hold up the next one.
func setConnection(config map[string]any, kubeconfig string) {
	config["clientConnection"] = map[string]any{"kubeconfig": kubeconfig, "qps": 200, "burst": 400}
	config["leaderElection"] = map[string]any{"leaderElect": false}
}

// runScheduler starts a scheduler and waits until it is healthy.
func (c *Cluster) runScheduler(ctx context.Context, name string, config map[string]any, port int, program string, args ...string) error {
	raw, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("encoding the configuration of %s: %w", name, err)
	}
	path := filepath.Join(c.dir.config(), name+".yaml")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return fmt.Errorf("writing the configuration of %s: %w", name, err)
	}
	p, err := c.launch(name, gracePlain, program, append(args,
		"--config="+path, "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port))...)
	if err != nil {
		return err
	}
	return p.await(ctx, healthy("https://"+loopback(port)+"/healthz"))
}

// healthy asks a component for its health. Its certificate is its own; only the
// answer's status is used.
func healthy(url string) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // loopback, and nothing is sent
		DisableKeepAlives: true,
	}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("asking for health: %w", err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("asking for health: %w", err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("asking for health at %s: %s", url, resp.Status)
		}
		return nil
	}
}

// The shipped configurations in manifests.FS: of berth-scheduler, and of the stock
// kube-scheduler that asks berth-extender.
const (
	schedulerConfigFile = "base/scheduler-config.yaml"
	extenderConfigFile  = "extender/scheduler-config.yaml"
)

// shippedSchedulerConfig is a shipped configuration with the sandbox's
// kubeconfig. With alone there is no other scheduler: then the shipped profile
// also serves the pods that name none.
func shippedSchedulerConfig(file, kubeconfig string, alone bool) (map[string]any, error) {
	raw, err := manifests.FS.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the shipped scheduler configuration: %w", err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("reading the shipped scheduler configuration: %w", err)
	}
	if kind := config["kind"]; kind != "KubeSchedulerConfiguration" {
		return nil, fmt.Errorf("manifests/%s: kind is %v, want KubeSchedulerConfiguration", file, kind)
	}
	setConnection(config, kubeconfig)
	profiles, ok := config["profiles"].([]any)
	if !ok || len(profiles) != 1 {
		return nil, fmt.Errorf("manifests/%s: want one profile", file)
	}
	shipped, ok := profiles[0].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("manifests/%s: the profile is no mapping", file)
	}
	if alone {
		second := maps.Clone(shipped)
		second["schedulerName"] = corev1.DefaultSchedulerName
		config["profiles"] = append(profiles, second)
	}
	return config, nil
}
