package pki

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"
	"time"
)

// TestHandshake lets a server and a client of one authority meet, and keeps out
// those of another.
func TestHandshake(t *testing.T) {
	now := time.Now()
	ours, theirs := authority(t, now), authority(t, now)
	server := pair(t)(ours.Server("server", "kubernetes.default"))
	cases := map[string]struct {
		reason     string
		client     tls.Certificate
		trusts     *Authority
		serverName string
		want       bool
	}{
		"loopback":         {"as the components do", pair(t)(ours.Client("user", "group")), ours, "127.0.0.1", true},
		"by name":          {"as a pod may", pair(t)(ours.Client("user")), ours, "kubernetes.default", true},
		"other name":       {"a name that the server has not", pair(t)(ours.Client("user")), ours, "example.org", false},
		"foreign server":   {"the client trusts another authority", pair(t)(ours.Client("user")), theirs, "127.0.0.1", false},
		"foreign client":   {"the server trusts ours alone", pair(t)(theirs.Client("user")), ours, "127.0.0.1", false},
		"server as client": {"etcd's peers do", pair(t)(ours.Server("peer")), ours, "localhost", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := handshake(t, ours, server, tc.client, tc.trusts, tc.serverName); (err == nil) != tc.want {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

func handshake(t *testing.T, ours *Authority, server, client tls.Certificate, trusts *Authority, serverName string) error {
	t.Helper()
	clientSide, serverSide := net.Pipe()
	defer clientSide.Close()
	served := make(chan error, 1)
	go func() {
		defer serverSide.Close()
		conn := tls.Server(serverSide, &tls.Config{
			Certificates: []tls.Certificate{server}, ClientCAs: pool(t, ours), ClientAuth: tls.RequireAndVerifyClientCert,
		})
		err := conn.Handshake()
		if err == nil {
			_, err = conn.Write([]byte("hello"))
		}
		served <- err
	}()
	conn := tls.Client(clientSide, &tls.Config{
		Certificates: []tls.Certificate{client}, RootCAs: pool(t, trusts), ServerName: serverName,
	})
	// The client learns of a refused certificate with its first read.
	_, err := io.ReadFull(conn, make([]byte, 5))
	clientSide.Close()
	<-served
	return err
}

func authority(t *testing.T, now time.Time) *Authority {
	t.Helper()
	a, err := NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func pair(t *testing.T) func(Pair, error) tls.Certificate {
	return func(p Pair, err error) tls.Certificate {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		c, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

func pool(t *testing.T, a *Authority) *x509.CertPool {
	t.Helper()
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(a.CertPEM) {
		t.Fatal("the authority's certificate cannot be read")
	}
	return p
}
