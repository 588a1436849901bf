package sandbox

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/host/process"
	"github.com/berth-storage/berth/manifests"
)

// overlay takes from the shipped manifests what the sandbox runs as processes
// instead. Everything else is applied as it is shipped.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../base
patches:
- target: {kind: Deployment}
  patch: |
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "any"}, "$patch": "delete"}
- target: {kind: DaemonSet}
  patch: |
    {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "any"}, "$patch": "delete"}
`

// applyManifests applies the shipped manifests with kubectl, as a user does.
func (c *Cluster) applyManifests(ctx context.Context) error {
	if err := os.CopyFS(c.dir.manifests(), manifests.FS); err != nil {
		return fmt.Errorf("writing the manifests: %w", err)
	}
	dir := filepath.Join(c.dir.manifests(), "sandbox")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("writing the manifests: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		return fmt.Errorf("writing the manifests: %w", err)
	}
	return c.kubectl(ctx, "kubectl-apply", "apply", "-k", dir)
}

// kubectl runs kubectl to its end, as the administrator.
func (c *Cluster) kubectl(ctx context.Context, name string, args ...string) error {
	p, err := process.Start(process.Spec{
		Name: name, Path: c.program("berth-sandbox"),
		Args:   append([]string{"kubectl", "--kubeconfig", c.dir.kubeconfig()}, args...),
		Marker: c.dir.marker(), Dir: c.dir.dir, Log: c.dir.log(name),
	})
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		if err := p.Kill(); err != nil {
			return err
		}
		return fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	if exit := p.Exit(); exit.Code != 0 {
		return fmt.Errorf("%s: %s\n%s", name, exit, tail(p.Log(), 8))
	}
	return nil
}

// schedulerConfigFile is the shipped configuration of berth-scheduler, in
// manifests.FS.
const schedulerConfigFile = "base/scheduler-config.yaml"

// writeSchedulerConfig writes the shipped configuration with the sandbox's
// kubeconfig, and without a leader election: a scheduler that was killed must
// not hold up the next one.
func (c *Cluster) writeSchedulerConfig(path, kubeconfig string) error {
	raw, err := manifests.FS.ReadFile(schedulerConfigFile)
	if err != nil {
		return fmt.Errorf("reading the shipped scheduler configuration: %w", err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(raw, &config); err != nil {
		return fmt.Errorf("reading the shipped scheduler configuration: %w", err)
	}
	if kind := config["kind"]; kind != "KubeSchedulerConfiguration" {
		return fmt.Errorf("manifests/%s: kind is %v, want KubeSchedulerConfiguration", schedulerConfigFile, kind)
	}
	config["clientConnection"] = map[string]any{"kubeconfig": kubeconfig, "qps": 200, "burst": 400}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	// There is no other scheduler here: the shipped profile also serves pods that
	// name none.
	profiles, ok := config["profiles"].([]any)
	if !ok || len(profiles) != 1 {
		return fmt.Errorf("manifests/%s: want one profile", schedulerConfigFile)
	}
	shipped, ok := profiles[0].(map[string]any)
	if !ok {
		return fmt.Errorf("manifests/%s: the profile is no mapping", schedulerConfigFile)
	}
	second := maps.Clone(shipped)
	second["schedulerName"] = corev1.DefaultSchedulerName
	config["profiles"] = append(profiles, second)
	if raw, err = yaml.Marshal(config); err != nil {
		return fmt.Errorf("encoding the scheduler configuration: %w", err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return fmt.Errorf("writing the scheduler configuration: %w", err)
	}
	return nil
}
