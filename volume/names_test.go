package volume

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNodeLabelValue(t *testing.T) {
	long := strings.Repeat("n", 64)
	cases := map[string]struct {
		reason string
		node   string
		want   string
	}{
		"short":   {"a name that fits is its own value", "edge-1", "edge-1"},
		"longest": {"63 bytes still fit", long[:63], long[:63]},
		"long": {
			"longer names keep 52 bytes and get 10 hex digits of their sha256", long,
			long[:52] + "-" + "ce068a195a",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := NodeLabelValue(tc.node)
			if len(got) > 63 {
				t.Errorf("%s: value of %d bytes", tc.reason, len(got))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
	if NodeLabelValue(long+"a") == NodeLabelValue(long+"b") {
		t.Error("two long names with one head share a value")
	}
}

func TestUpstreamNames(t *testing.T) {
	cases := map[string]struct {
		reason    string
		got, want string
	}{
		"attachment": {
			"kubelet: csi- and the sha256 of handle, driver, node",
			AttachmentName("vol", "drv", "node"), "csi-" + hexSum("voldrvnode"),
		},
		"unique":    {"attach-detach controller", UniqueName("drv", "vol"), "kubernetes.io/csi/drv^vol"},
		"pv":        {"external-provisioner's default prefix", PVName("u-1"), "pvc-u-1"},
		"ephemeral": {"KEP-1698", EphemeralClaimName("web-0", "scratch"), "web-0-scratch"},
		"inline":    {"kubelet: csi- and the sha256 of pod UID and volume", InlineHandle("u", "v"), "csi-" + hexSum("uv")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, tc.got, tc.want)
			}
		})
	}
}

const poolUUID = "6f1c2b1e-3b0a-4c55-9a0e-0d7c1f0f2a11"

func TestParseID(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     string
		want   ID
		bad    bool
	}{
		"good":       {reason: "what String wrote", in: poolUUID + "/pvc-1", want: ID{poolUUID, "pvc-1"}},
		"empty":      {reason: "no id", in: "", bad: true},
		"no slash":   {reason: "another driver's id", in: "pvc-1", bad: true},
		"traversal":  {reason: "a name never climbs out of the pool", in: poolUUID + "/../etc", bad: true},
		"deep":       {reason: "a name is one path element", in: poolUUID + "/a/b", bad: true},
		"dot":        {reason: "hidden files are the pool's own", in: poolUUID + "/.lock", bad: true},
		"bad pool":   {reason: "the pool is a path element too", in: "../" + poolUUID, bad: true},
		"over limit": {reason: "128 bytes is the CSI limit", in: poolUUID + "/" + strings.Repeat("a", 92), bad: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseID(tc.in)
			if (err != nil) != tc.bad {
				t.Fatalf("%s: error %v, want one: %t", tc.reason, err, tc.bad)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// FuzzSafeName checks that every requested name becomes a file name that lives
// through an ID, and that no two names meet.
func FuzzSafeName(f *testing.F) {
	for _, s := range []string{"", "pvc-1", "../x", ".", "-", "x-a", "é", strings.Repeat("a", 91), strings.Repeat("a", 92), "a b", "a/b"} {
		f.Add(s, "pvc-1")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		name := SafeName(a)
		id := ID{Pool: poolUUID, Name: name}
		got, err := ParseID(id.String())
		if err != nil || got != id {
			t.Fatalf("SafeName(%q) = %q does not survive an ID: %v, %v", a, name, got, err)
		}
		if a != b && name == SafeName(b) {
			t.Fatalf("%q and %q both become %q", a, b, name)
		}
	})
}
