// Package notes writes Kubernetes events: texts for people about one object,
// within the API server's limits.
package notes

import (
	"unicode/utf8"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// noteMax is the longest note of an event, in bytes (events.k8s.io/v1,
// Event.note).
const noteMax = 1024

// Recorder is the part of client-go's events.EventRecorder that is used here.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Normal records that something went as it should.
func Normal(r Recorder, about runtime.Object, reason, action, note string) {
	r.Eventf(about, nil, corev1.EventTypeNormal, reason, action, "%s", cut(note))
}

// Warning records that something failed.
func Warning(r Recorder, about runtime.Object, reason, action, note string) {
	r.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", cut(note))
}

// Message is what a driver said in the error of a call, without the wrapping
// of gRPC; another error's own text.
func Message(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// cut shortens a note to the limit, between characters.
func cut(s string) string {
	if len(s) <= noteMax {
		return s
	}
	const mark = "…"
	n := noteMax - len(mark)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}
