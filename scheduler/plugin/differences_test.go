package plugin

import (
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDifferences: the package doc tells every Difference, and no other, in the
// words of its Sentence.
func TestDifferences(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(file.Doc.Text(), "Differences from upstream")
	told := map[Difference]string{}
	for _, item := range strings.Split(text, "\n  - ")[1:] {
		name, sentence, _ := strings.Cut(item, ": ")
		told[Difference(name)] = strings.Join(strings.Fields(sentence), " ")
	}
	want := map[Difference]string{}
	for _, d := range Differences() {
		want[d] = d.Sentence()
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("the package doc is not the list: (-list +doc)\n%s", diff)
	}
}

// TestDifferencesClosed reads the constants from the source, so that a new one
// without a sentence fails here.
func TestDifferencesClosed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "differences.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	for name := range file.Scope.Objects {
		if name != "Difference" && name != "Differences" && strings.HasPrefix(name, "Difference") {
			declared++
		}
	}
	if all := Differences(); declared != len(all) || slices.Contains(all, "") {
		t.Errorf("%d are declared, %d have a sentence", declared, len(all))
	}
}
