package sandbox

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/berth-storage/berth/host/process"
	"github.com/berth-storage/berth/manifests"
)

// overlay takes from the shipped manifests, the folder %s, what the sandbox runs as
// processes instead. Everything else is applied as it is shipped.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../%s
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
	folder := path.Dir(schedulerConfigFile)
	if c.options.Extender {
		folder = path.Dir(extenderConfigFile)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, overlay, folder), 0o600); err != nil {
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
