package sandbox

import (
	"fmt"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-storage/berth/internal/sandbox/pki"
)

// access is how to reach the API server.
type access struct {
	server string
	ca     *pki.Authority
}

// client makes the kubeconfig of a user with a certificate.
func (a access) client(user string, groups ...string) (*clientcmdapi.Config, error) {
	pair, err := a.ca.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	return a.config(user, &clientcmdapi.AuthInfo{
		ClientCertificateData: pair.CertPEM,
		ClientKeyData:         pair.KeyPEM,
	}), nil
}

// token makes the kubeconfig of a user with a token.
func (a access) token(user, token string) *clientcmdapi.Config {
	return a.config(user, &clientcmdapi.AuthInfo{Token: token})
}

func (a access) config(user string, auth *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	const name = "berth-sandbox"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: a.server, CertificateAuthorityData: a.ca.CertPEM}
	c.AuthInfos[user] = auth
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	c.CurrentContext = name
	return c
}

// configPath is where the kubeconfig of a component lies.
func (l layout) configPath(component string) string {
	return filepath.Join(l.config(), component+".kubeconfig")
}

// writeConfig writes a kubeconfig that only root can read.
func writeConfig(path string, c *clientcmdapi.Config) error {
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("writing the kubeconfig %s: %w", path, err)
	}
	return nil
}

// restConfig turns a kubeconfig into one for client-go, with limits that do not
// slow a single user down.
func restConfig(c *clientcmdapi.Config) (*rest.Config, error) {
	r, err := clientcmd.NewDefaultClientConfig(*c, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("making the client configuration: %w", err)
	}
	r.QPS, r.Burst = 200, 400
	r.UserAgent = "berth-sandbox"
	return r, nil
}
