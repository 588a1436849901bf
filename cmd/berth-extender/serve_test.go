package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.key = a.newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

// pair is a certificate of the name and its key, for both ends, in PEM.
func (a *authority) pair(name string) (cert, key []byte) {
	own := a.newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, own.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// caller is a client that trusts the authority, with a certificate of the name.
func (a *authority) caller(name string) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	settings := &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	if name != "" {
		pair, err := tls.X509KeyPair(a.pair(name))
		if err != nil {
			a.t.Fatal(err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: settings, DisableKeepAlives: true}}
}

// TestTLS: who is let in over TLS, and that a new certificate of the server and a new
// CA of the callers hold without a restart.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, data []byte) {
		// As a Secret's volume: the old file or the new one, never half of it.
		if err := os.WriteFile(path(name+".new"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path(name+".new"), path(name)); err != nil {
			t.Fatal(err)
		}
	}
	old := newAuthority(t)
	install := func(a *authority) {
		cert, key := a.pair("berth-extender")
		write("tls.key", key)
		write("tls.crt", cert)
		write("ca.crt", a.pem())
	}
	install(old)
	s := serveOptions{
		address: "127.0.0.1:0", certFile: path("tls.crt"), keyFile: path("tls.key"), clientCA: path("ca.crt"), clientNames: []string{"system:kube-scheduler"},
	}
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := s.listener(ctx)
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.callers().Allow(r); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, handler, time.Second) }()
	ask := func(c *http.Client) (int, string, error) {
		resp, err := c.Get("https://" + listener.Addr().String() + "/filter")
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	if code, body, err := ask(old.caller("system:kube-scheduler")); code != http.StatusOK {
		t.Errorf("kube-scheduler: %d %s %v", code, body, err)
	}
	if code, body, err := ask(old.caller("system:node:n1")); code != http.StatusUnauthorized || !strings.Contains(body, "system:node:n1") {
		t.Errorf("a kubelet: %d %s %v", code, body, err)
	}
	if code, body, err := ask(old.caller("")); code != http.StatusUnauthorized || !strings.Contains(body, "client certificate") {
		t.Errorf("nobody: %d %s %v", code, body, err)
	}
	fresh := newAuthority(t)
	stranger := old.caller("system:kube-scheduler")
	stranger.Transport.(*http.Transport).TLSClientConfig.Certificates = fresh.caller("system:kube-scheduler").Transport.(*http.Transport).TLSClientConfig.Certificates
	if code, _, err := ask(stranger); err == nil {
		t.Errorf("another CA's certificate: %d", code)
	}
	install(fresh)
	deadline, tick := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		code, _, err := ask(fresh.caller("system:kube-scheduler"))
		if code == http.StatusOK {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the new certificates never hold: %d %v", code, err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestServeEnds: a bind that waits is told that the program ends, and is answered.
func TestServeEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := serveOptions{address: "127.0.0.1:0"}
	listener, err := s.listener(ctx)
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(waiting)
		<-r.Context().Done()
		_, _ = io.WriteString(w, "kept")
	})
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, handler, time.Second) }()
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Post("http://"+listener.Addr().String()+"/bind", "application/json", http.NoBody)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body) // compared below
		answer <- string(body)
	}()
	<-waiting
	cancel()
	if got := <-answer; got != "kept" {
		t.Errorf("the bind in flight got %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestServeFails: what cannot be served is told by flag, before anything else starts.
func TestServeFails(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := newAuthority(t).pair("x")
	good := map[string][]byte{"cert": cert, "key": key}
	for name, data := range good {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := (&serveOptions{address: "127.0.0.1:0"}).listener(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cases := map[string]struct {
		reason string
		serve  serveOptions
		want   string
	}{
		"taken":       {"another program's", serveOptions{address: taken.Addr().String()}, "--serve-address"},
		"no file":     {"names the flag", serveOptions{address: "127.0.0.1:0", certFile: filepath.Join(dir, "none"), keyFile: broken}, "--tls-cert-file"},
		"no PEM":      {"names the flag", serveOptions{address: "127.0.0.1:0", certFile: broken, keyFile: broken}, "--tls-cert-file"},
		"no PEM, CAs": {"names the flag", serveOptions{address: "127.0.0.1:0", certFile: filepath.Join(dir, "cert"), keyFile: filepath.Join(dir, "key"), clientCA: broken}, "--client-ca-file"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if l, err := tc.serve.listener(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, %v", tc.reason, l, err)
			}
		})
	}
}
