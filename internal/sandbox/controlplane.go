package sandbox

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-storage/berth/internal/sandbox/pki"
)

// Grace periods before a process is killed. Everything that these processes
// hold is thrown away, so they are short; kube-apiserver can linger for a minute
// over open watches.
const (
	gracePlain     = 2 * time.Second
	graceAPIServer = 1500 * time.Millisecond
)

// issuer is the issuer of service-account tokens, as kubeadm sets it.
const issuer = "https://kubernetes.default.svc"

// prepareControlPlane writes certificates, keys and kubeconfigs, and chooses the
// ports.
func (c *Cluster) prepareControlPlane() error {
	for _, dir := range []string{c.dir.pki(), c.dir.etcd(), c.dir.logs(), c.dir.config(), c.dir.nodes()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making the data folder's parts: %w", err)
		}
	}
	ports, err := freePorts(8)
	if err != nil {
		return err
	}
	c.ports = portSet{
		etcd: ports[0], etcdPeer: ports[1], apiserver: ports[2],
		controllerManager: ports[3], scheduler: ports[4], stockScheduler: ports[5],
		extender: ports[6], extenderHTTP: ports[7],
	}
	ca, err := pki.NewAuthority("berth-sandbox", time.Now())
	if err != nil {
		return err
	}
	if err := writePKI(c.dir.pki(), ca); err != nil {
		return err
	}
	c.access = access{server: "https://" + loopback(c.ports.apiserver), ca: ca}
	admin, err := c.access.client("admin", "system:masters")
	if err != nil {
		return err
	}
	if err := writeConfig(c.dir.kubeconfig(), admin); err != nil {
		return err
	}
	if c.rest, err = restConfig(admin); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.rest); err != nil {
		return fmt.Errorf("making the client: %w", err)
	}
	manager, err := c.access.client("system:kube-controller-manager")
	if err != nil {
		return err
	}
	return writeConfig(c.dir.configPath("kube-controller-manager"), manager)
}

func writePKI(dir string, ca *pki.Authority) error {
	etcd, err := ca.Server("etcd")
	if err != nil {
		return err
	}
	etcdClient, err := ca.Client("kube-apiserver-etcd-client")
	if err != nil {
		return err
	}
	apiserver, err := ca.Server("kube-apiserver", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	for name, pair := range map[string]pki.Pair{"etcd": etcd, "etcd-client": etcdClient, "apiserver": apiserver} {
		if err := pair.Write(dir, name); err != nil {
			return err
		}
	}
	private, public, err := pki.SigningKey()
	if err != nil {
		return err
	}
	for name, raw := range map[string][]byte{"ca.crt": ca.CertPEM, "token.key": private, "token.pub": public} {
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return nil
}

// startEtcd starts etcd and waits until it listens; kube-apiserver waits for
// the rest by itself.
func (c *Cluster) startEtcd(ctx context.Context) error {
	pki := c.dir.pki()
	client, peer := "https://"+loopback(c.ports.etcd), "https://"+loopback(c.ports.etcdPeer)
	cert, key, ca := filepath.Join(pki, "etcd.crt"), filepath.Join(pki, "etcd.key"), filepath.Join(pki, "ca.crt")
	p, err := c.launch("etcd", gracePlain, c.program("berth-sandbox"), "etcd",
		"--name=sandbox", "--data-dir="+c.dir.etcd(), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=sandbox="+peer,
		"--cert-file="+cert, "--key-file="+key, "--trusted-ca-file="+ca, "--client-cert-auth",
		"--peer-cert-file="+cert, "--peer-key-file="+key, "--peer-trusted-ca-file="+ca, "--peer-client-cert-auth",
	)
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", loopback(c.ports.etcd))
		if err != nil {
			return fmt.Errorf("reaching etcd: %w", err)
		}
		return conn.Close()
	})
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	pki := c.dir.pki()
	in := func(name string) string { return filepath.Join(pki, name) }
	p, err := c.launch("kube-apiserver", graceAPIServer, c.program("berth-sandbox"), "kube-apiserver",
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+strconv.Itoa(c.ports.apiserver),
		"--etcd-servers=https://"+loopback(c.ports.etcd), "--etcd-cafile="+in("ca.crt"),
		"--etcd-certfile="+in("etcd-client.crt"), "--etcd-keyfile="+in("etcd-client.key"),
		"--tls-cert-file="+in("apiserver.crt"), "--tls-private-key-file="+in("apiserver.key"),
		"--client-ca-file="+in("ca.crt"),
		"--service-account-issuer="+issuer, "--service-account-key-file="+in("token.pub"),
		"--service-account-signing-key-file="+in("token.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged", "--service-cluster-ip-range=10.0.0.0/24",
		// Loopback is not a legal endpoint, and nothing here uses the Service.
		"--endpoint-reconciler-type=none",
		"--profiling=false", "--v=1",
	)
	if err != nil {
		return err
	}
	return c.awaitAPIServer(ctx, p)
}

func (c *Cluster) awaitAPIServer(ctx context.Context, p *Process) error {
	return p.await(ctx, func(ctx context.Context) error {
		return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// RestartAPIServer starts a kube-apiserver again that has ended, and waits until
// it serves.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	p, err := c.Process("kube-apiserver")
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	return c.awaitAPIServer(ctx, p)
}

// startControllerManager starts kube-controller-manager and waits until pods
// can be created: their service account is its work.
func (c *Cluster) startControllerManager(ctx context.Context) error {
	pki, config := c.dir.pki(), c.dir.configPath("kube-controller-manager")
	p, err := c.launch("kube-controller-manager", gracePlain, c.program("berth-sandbox"), "kube-controller-manager",
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(c.ports.controllerManager),
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file="+filepath.Join(pki, "token.key"), "--root-ca-file="+filepath.Join(pki, "ca.crt"),
		"--flex-volume-plugin-dir="+filepath.Join(c.dir.dir, "flexvolume"),
		"--kube-api-qps=200", "--kube-api-burst=400", "--profiling=false", "--v=1",
	)
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the default service account: %w", err)
		}
		return nil
	})
}

// startControlPlane brings up etcd, then kube-apiserver.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := c.step("certificates, keys and ports", c.prepareControlPlane); err != nil {
		return err
	}
	if err := c.step("etcd", func() error { return c.startEtcd(ctx) }); err != nil {
		return err
	}
	return c.step("kube-apiserver", func() error { return c.startAPIServer(ctx) })
}

// startRest brings up all that needs an API server, side by side.
func (c *Cluster) startRest(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if c.options.has(ControllerManager) {
		group.Go(func() error {
			return c.step("kube-controller-manager", func() error { return c.startControllerManager(ctx) })
		})
	}
	if c.options.Nodes > 0 {
		group.Go(func() error { return c.startBerth(ctx) })
	}
	return group.Wait()
}
