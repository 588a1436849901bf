package sandbox

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-storage/berth/volume"
)

// Namespace holds the service accounts of Berth's components, as shipped.
const Namespace = "berth-system"

// tokenSeconds is the life of a component's token, longer than a sandbox's.
const tokenSeconds = 30 * 24 * 3600

// startBerth brings up Berth, the nodes and what schedules to them, given an API
// server.
func (c *Cluster) startBerth(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	if c.options.has(Runtimes) {
		group.Go(func() error {
			return c.step(fmt.Sprintf("%d pod runtimes", len(c.nodes)), c.startRuntimes)
		})
	}
	if c.options.has(StockScheduler) {
		group.Go(func() error {
			return c.step("kube-scheduler", func() error { return c.startStockScheduler(groupCtx) })
		})
	}
	group.Go(func() error {
		if c.options.has(Manifests) {
			if err := c.step("manifests", func() error { return c.applyManifests(groupCtx) }); err != nil {
				return err
			}
		}
		inner, innerCtx := errgroup.WithContext(groupCtx)
		if c.options.has(Scheduler) {
			start := c.startScheduler
			if c.options.Extender {
				start = c.startExtender
			}
			inner.Go(func() error {
				return c.step(c.SchedulerName(), func() error { return start(innerCtx) })
			})
		}
		if c.options.has(Agents) {
			inner.Go(func() error {
				return c.step(fmt.Sprintf("%d node agents", len(c.nodes)), func() error { return c.startAgents(innerCtx) })
			})
		}
		return inner.Wait()
	})
	return group.Wait()
}

// componentConfig writes a kubeconfig with a token of a shipped service account,
// so that the component has the rights that are shipped, and no more.
func (c *Cluster) componentConfig(ctx context.Context, account string) (path string, err error) {
	seconds := int64(tokenSeconds)
	answer, err := c.client.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token of service account %s/%s: %w", Namespace, account, err)
	}
	path = c.dir.configPath(account)
	return path, writeConfig(path, c.access.token(account, answer.Status.Token))
}

func (c *Cluster) startAgents(ctx context.Context) error {
	kubeconfig, err := c.componentConfig(ctx, "berth-agent")
	if err != nil {
		return err
	}
	for _, n := range c.nodes {
		_, err := c.launch(n.AgentProcess(), gracePlain, c.program("berth-agent"),
			"--mode=standalone", "--node-name="+n.Name, "--root="+n.Root(), "--pool-dir="+n.Pool(),
			"--kubeconfig="+kubeconfig, "--podvolumes-socket="+n.PodVolumesSocket(),
			"--topology-labels="+volume.LabelZone, "--http-address=127.0.0.1:0", "-v=2")
		if err != nil {
			return err
		}
	}
	return nil
}

// startRuntimes starts the pod runtimes, each as its node's own user, whose
// rights the Node authorizer gives.
func (c *Cluster) startRuntimes() error {
	for _, n := range c.nodes {
		config, err := c.access.client("system:node:"+n.Name, "system:nodes")
		if err != nil {
			return err
		}
		path := c.dir.configPath(n.RuntimeProcess())
		if err := writeConfig(path, config); err != nil {
			return err
		}
		args := []string{
			"node", "--node-name=" + n.Name, "--zone=" + n.Zone, "--dir=" + n.Runtime(),
			"--hide=" + c.dir.dir, "--marker=" + c.dir.marker(), "--kubeconfig=" + path,
		}
		if c.options.has(Agents) {
			args = append(args, "--podvolumes-socket="+n.PodVolumesSocket())
		}
		if _, err := c.launch(n.RuntimeProcess(), gracePlain, c.program("berth-sandbox"), args...); err != nil {
			return err
		}
	}
	return nil
}

// awaitNodes waits until every node is Ready and has the bundled driver.
func (c *Cluster) awaitNodes(ctx context.Context) error {
	if !c.options.has(Runtimes) {
		return nil
	}
	return c.step("nodes ready", func() error {
		group, ctx := errgroup.WithContext(ctx)
		for _, n := range c.nodes {
			group.Go(func() error { return c.untilEnded(ctx, n.RuntimeProcess(), c.awaitReady(n)) })
			if c.options.has(Agents) {
				group.Go(func() error { return c.untilEnded(ctx, n.AgentProcess(), c.awaitDriver(n)) })
			}
		}
		return group.Wait()
	})
}

// untilEnded waits with wait, but not longer than the process lives.
func (c *Cluster) untilEnded(ctx context.Context, name string, wait func(context.Context) error) error {
	p, err := c.Process(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.Done():
			cancel(p.endedError())
		case <-ctx.Done():
		}
	}()
	if err := wait(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return nil
}

func (c *Cluster) awaitReady(n Node) func(context.Context) error {
	return func(ctx context.Context) error {
		lw := cache.NewListWatchFromClient(c.client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", n.Name))
		return awaitObject(ctx, lw, &corev1.Node{}, n.Name, func(object runtime.Object) bool {
			node, ok := object.(*corev1.Node)
			return ok && nodeUsable(node)
		})
	}
}

// nodeUsable reports whether pods can be scheduled to the node: it is Ready and
// the node controller has taken its taint away.
func nodeUsable(node *corev1.Node) bool {
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady {
			return false
		}
	}
	for _, cond := range node.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (c *Cluster) awaitDriver(n Node) func(context.Context) error {
	return func(ctx context.Context) error {
		lw := cache.NewListWatchFromClient(c.client.StorageV1().RESTClient(), "csinodes", "", fields.OneTermEqualSelector("metadata.name", n.Name))
		return awaitObject(ctx, lw, &storagev1.CSINode{}, n.Name, func(object runtime.Object) bool {
			node, ok := object.(*storagev1.CSINode)
			if !ok {
				return false
			}
			for _, d := range node.Spec.Drivers {
				if d.Name == volume.DriverName {
					return true
				}
			}
			return false
		})
	}
}

// awaitObject watches one object until it is as wanted.
func awaitObject(ctx context.Context, lw cache.ListerWatcher, kind runtime.Object, name string, wanted func(runtime.Object) bool) error {
	_, err := watchtools.UntilWithSync(ctx, lw, kind, nil, func(e watch.Event) (bool, error) {
		return e.Type != watch.Deleted && wanted(e.Object), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %T %s: %w", kind, name, err)
	}
	return nil
}
