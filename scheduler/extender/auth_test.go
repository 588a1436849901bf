package extender

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAllow: who gets in, and that a refusal says what is missing and repeats no
// secret.
func TestAllow(t *testing.T) {
	const secret, wrong = "s3cr3t-token", "guessed-token"
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tokens := Callers{TokenFile: file("token", secret+"\n")}
	names := Callers{Names: []string{"system:kube-scheduler"}}
	both := Callers{Names: names.Names, TokenFile: tokens.TokenFile}
	certificate := func(name string, verified bool) func(*http.Request) {
		return func(r *http.Request) {
			cert := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
			if verified {
				r.TLS.VerifiedChains = [][]*x509.Certificate{{cert}}
			}
		}
	}
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	password := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth("anybody", token) }
	}
	nothing := func(*http.Request) {}
	cases := map[string]struct {
		reason  string
		callers Callers
		show    func(*http.Request)
		want    string
	}{
		"loopback":            {"whoever reaches it", Callers{}, nothing, ""},
		"certificate":         {"of a name that may", names, certificate("system:kube-scheduler", true), ""},
		"another's":           {"every kubelet has one of the cluster's CA", names, certificate("system:node:n1", true), `"system:node:n1" is none of --client-names`},
		"unverified":          {"anybody can write such a name", names, certificate("system:kube-scheduler", false), "show a client certificate"},
		"no certificate":      {"says what to configure", names, nothing, "certFile and keyFile"},
		"token, unwanted":     {"no token is configured", names, bearer(secret), "show a client certificate"},
		"bearer":              {"the token", tokens, bearer(secret), ""},
		"password":            {"as in urlPrefix", tokens, password(secret), ""},
		"wrong token":         {"is not it", tokens, bearer(wrong), "is not that of --token-file"},
		"wrong password":      {"is not it", tokens, password(wrong), "is not that of --token-file"},
		"longer":              {"a prefix is not enough", tokens, bearer(secret + "x"), "is not that of --token-file"},
		"empty token":         {"nothing is not the token", tokens, bearer(""), "is not that of --token-file"},
		"no token":            {"says what to show", tokens, nothing, "show the token of --token-file"},
		"another scheme":      {"is no token", tokens, func(r *http.Request) { r.Header.Set("Authorization", "Digest "+secret) }, "show the token"},
		"certificate, tokens": {"no name may", tokens, certificate("system:kube-scheduler", true), "show the token"},
		"empty file":          {"admits nobody, least of all an empty token", Callers{TokenFile: file("empty", "\n")}, bearer(""), "is empty"},
		"no file":             {"admits nobody", Callers{TokenFile: filepath.Join(dir, "none")}, bearer(secret), "cannot be read"},
		"either: certificate": {"one of the two is enough", both, certificate("system:kube-scheduler", true), ""},
		"either: token":       {"one of the two is enough", both, bearer(secret), ""},
		"neither":             {"says both", both, nothing, "tlsConfig) or the token"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/filter", http.NoBody)
			tc.show(r)
			err := tc.callers.Allow(r)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("%s: %v, want %q", tc.reason, err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), wrong) || strings.Contains(err.Error(), dir)) {
				t.Errorf("a refusal tells secrets: %v", err)
			}
		})
	}
	r := httptest.NewRequest(http.MethodPost, "/filter", http.NoBody)
	bearer("rotated")(r)
	file("token", "rotated")
	if err := tokens.Allow(r); err != nil {
		t.Errorf("a new token does not hold at once: %v", err)
	}
}
