package extender

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Callers are who may call. None at all: everybody who reaches the address, which is
// then a loopback one.
type Callers struct {
	// Names are the common names of client certificates, which the TLS layer has
	// verified against the CA of callers.
	Names []string
	// TokenFile holds a token, which is read for each request, so that a new one
	// holds at once.
	TokenFile string
}

// Allow lets a request in, or says what it lacks. It takes the token as
// "Authorization: Bearer", or as the password of basic authentication, which is how
// a kube-scheduler sends what stands in its urlPrefix.
func (c Callers) Allow(r *http.Request) error {
	if len(c.Names) == 0 && c.TokenFile == "" {
		return nil
	}
	name, certified := commonName(r)
	if certified && slices.Contains(c.Names, name) {
		return nil
	}
	if token, ok := tokenOf(r); ok && c.TokenFile != "" {
		return c.judge(token)
	}
	if certified && len(c.Names) > 0 {
		return fmt.Errorf("the client certificate's common name %q is none of --client-names", name)
	}
	var wanted []string
	if len(c.Names) > 0 {
		wanted = append(wanted, "a client certificate (certFile and keyFile in the extender's tlsConfig)")
	}
	if c.TokenFile != "" {
		wanted = append(wanted, "the token of --token-file, as bearer token or as password")
	}
	return errors.New("show " + strings.Join(wanted, " or "))
}

// commonName is that of the client certificate, if there is one that the TLS layer
// has verified.
func commonName(r *http.Request) (string, bool) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return "", false
	}
	return r.TLS.VerifiedChains[0][0].Subject.CommonName, true
}

func tokenOf(r *http.Request) (string, bool) {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return token, true
	}
	_, password, ok := r.BasicAuth()
	return password, ok
}

func (c Callers) judge(token string) error {
	raw, err := os.ReadFile(c.TokenFile)
	if err != nil {
		// Its path is the operator's business, not the caller's.
		return errors.New("the token cannot be judged: --token-file cannot be read")
	}
	want := strings.TrimSpace(string(raw))
	if want == "" {
		return errors.New("the token cannot be judged: --token-file is empty")
	}
	// Of equal length, so that the time tells nothing.
	a, b := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(want))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return errors.New("the token is not that of --token-file")
	}
	return nil
}
