package podruntime

import (
	"strings"
	"testing"
)

func TestLogPrefix(t *testing.T) {
	long := strings.Repeat("p", 253)
	cases := map[string]struct {
		reason, namespace, pod, want string
	}{
		"short": {"a name that fits can be read", "default", "web-0", "default_web-0_"},
		"long":  {"a longer one leaves room for the uid", strings.Repeat("n", 63), long, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := logPrefix(tc.namespace, tc.pod)
			if tc.want != "" && got != tc.want || len(got)+36 > 255 {
				t.Errorf("%s: got %q of %d bytes, want %q", tc.reason, got, len(got), tc.want)
			}
		})
	}
	if logPrefix("default", long+"a") == logPrefix("default", long+"b") {
		t.Error("two long names share a folder")
	}
}
