package volume

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestReasonsClosed reads the constants from the source, so that a new reason
// without a sentence fails here and not in front of a user.
func TestReasonsClosed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []Reason
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Reason" {
			s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, Reason(s))
		}
		return true
	})
	slices.Sort(declared)
	if !slices.Equal(declared, Reasons()) {
		t.Errorf("declared %v\nwith a sentence %v", declared, Reasons())
	}
}

func TestRefusalString(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     Refusal
		want   string
	}{
		"bare": {"no detail, no colon", Refusal{Reason: ReasonAttachLimit}, "node(s) exceed max volume count"},
		"detail": {
			"the sentence comes first, as upstream's users search for it",
			Refusal{ReasonNotEnoughCapacity, "claim default/data asks 10 GiB, at most 8 GiB free"},
			"node(s) did not have enough free storage: claim default/data asks 10 GiB, at most 8 GiB free",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.in.String(); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
	long := Refusal{ReasonAttachLimit, strings.Repeat("é", 200)}.String()
	if len(long) > DetailMax || !utf8.ValidString(long) || !strings.HasSuffix(long, "…") {
		t.Errorf("a long detail is cut between characters and marked: %d bytes, %q", len(long), long)
	}
}

func TestTopology(t *testing.T) {
	labels := map[string]string{"zone": "a", "node": "n1", "other": "x"}
	got, missing := Pick(labels, []string{"zone", "rack", "node", "disk"})
	if got.String() != "node=n1,zone=a" || !slices.Equal(missing, []string{"disk", "rack"}) {
		t.Errorf("Pick: %s, missing %v", got, missing)
	}
	cases := map[string]struct {
		reason string
		in     Topology
		want   bool
	}{
		"empty":   {"the empty topology is everywhere", nil, true},
		"all":     {"every key agrees", Topology{"zone": "a", "node": "n1"}, true},
		"value":   {"one value differs", Topology{"zone": "a", "node": "n2"}, false},
		"missing": {"a label that the node lacks never matches, even for the empty value", Topology{"rack": ""}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.in.MatchedBy(labels); got != tc.want {
				t.Errorf("%s: got %t", tc.reason, got)
			}
		})
	}
}
