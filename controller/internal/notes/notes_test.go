package notes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime"
)

type recorder struct{ note string }

func (r *recorder) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.note = kind + " " + reason + " " + fmt.Sprintf(note, args...)
}

func TestNotes(t *testing.T) {
	r := &recorder{}
	Normal(r, nil, "Done", "Do", "100% done")
	if r.note != "Normal Done 100% done" {
		t.Errorf("a note is no format: %q", r.note)
	}
	Warning(r, nil, "Failed", "Do", strings.Repeat("é", 1000))
	note := strings.TrimPrefix(r.note, "Warning Failed ")
	if len(note) > 1024 || len(note) < 1000 || !utf8.ValidString(note) || !strings.HasSuffix(note, "…") {
		t.Errorf("a long note is cut between characters and marked: %d bytes", len(note))
	}
}

func TestMessage(t *testing.T) {
	if got := Message(status.Error(codes.Internal, "broken")); got != "broken" {
		t.Errorf("got %q", got)
	}
	if got := Message(errors.New("plain")); got != "plain" {
		t.Errorf("got %q", got)
	}
}
