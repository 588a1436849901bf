package plan

import "fmt"

// Certainty says what is known of a side effect.
type Certainty int

const (
	// Absent: it did not happen, or was undone, or failed and left nothing.
	Absent Certainty = iota
	// Uncertain: a call was, or may have been, made, and its result is not
	// known. Set-up repeats the call; teardown makes the inverse.
	Uncertain
	// Done: the driver said so.
	Done
)

// Certainties lists the closed set.
func Certainties() []Certainty { return []Certainty{Absent, Uncertain, Done} }

// String is the word used in records and logs.
func (c Certainty) String() string {
	switch c {
	case Absent:
		return "absent"
	case Uncertain:
		return "uncertain"
	case Done:
		return "done"
	default:
		panic(fmt.Sprintf("certainty %d does not exist", int(c)))
	}
}

// ParseCertainty reads what String wrote.
func ParseCertainty(s string) (Certainty, error) {
	for _, c := range Certainties() {
		if c.String() == s {
			return c, nil
		}
	}
	return Absent, fmt.Errorf("certainty %q: want absent, uncertain or done", s)
}

// Effect is one side effect on the node, as it is recorded.
type Effect struct {
	// State is what is known of it.
	State Certainty
	// Path is where it is: the staging or target path of the CSI call. Set from
	// the first BecomeUncertain until BecomeAbsent.
	Path string
	// SawMount says that something was mounted at Path right after the call.
	// Only then does its absence from the mount table prove a loss: drivers
	// may stage without mounting.
	SawMount bool
}

// BecomeUncertain is the intent, recorded before a call or its inverse.
func (e *Effect) BecomeUncertain(path string) {
	e.State, e.Path = Uncertain, path
}

// BecomeDone is a call's success.
func (e *Effect) BecomeDone(sawMount bool) {
	e.State, e.SawMount = Done, sawMount
}

// BecomeAbsent is a call that failed for good, or an inverse call's success.
func (e *Effect) BecomeAbsent() { *e = Effect{} }

// holds reports whether the effect is in force, as far as record and mount
// table can tell.
func (e Effect) holds(mounted map[string]bool) bool {
	return e.State == Done && (!e.SawMount || mounted[e.Path])
}

// Custody says who answers for a pod's processes.
type Custody int

const (
	// Kept: the volume was never handed out, so no process can use it.
	Kept Custody = iota
	// HandedOut: a pod runtime was told the path; processes may use it.
	HandedOut
	// Released: the runtime said that no process is left and none will come.
	// This is final.
	Released
)

// Custodies lists the closed set.
func Custodies() []Custody { return []Custody{Kept, HandedOut, Released} }

// String is the word used in records and logs.
func (c Custody) String() string {
	switch c {
	case Kept:
		return "kept"
	case HandedOut:
		return "handed-out"
	case Released:
		return "released"
	default:
		panic(fmt.Sprintf("custody %d does not exist", int(c)))
	}
}

// ParseCustody reads what String wrote.
func ParseCustody(s string) (Custody, error) {
	for _, c := range Custodies() {
		if c.String() == s {
			return c, nil
		}
	}
	return Kept, fmt.Errorf("custody %q: want kept, handed-out or released", s)
}

// PodState is what the API says of a pod that should be, or was, on this node.
type PodState int

const (
	// PodUnknown: the list of pods is not complete yet. The zero value, so that
	// a missing answer is never evidence.
	PodUnknown PodState = iota
	// PodActive: it is bound here and may run.
	PodActive
	// PodDeleting: it has a deletionTimestamp.
	PodDeleting
	// PodTerminal: it succeeded or failed.
	PodTerminal
	// PodAbsent: a complete list does not have it.
	PodAbsent
)

// PodStates lists the closed set.
func PodStates() []PodState {
	return []PodState{PodUnknown, PodActive, PodDeleting, PodTerminal, PodAbsent}
}

// String is the word used in logs and transcripts.
func (p PodState) String() string {
	switch p {
	case PodUnknown:
		return "unknown"
	case PodActive:
		return "active"
	case PodDeleting:
		return "deleting"
	case PodTerminal:
		return "terminal"
	case PodAbsent:
		return "absent"
	default:
		panic(fmt.Sprintf("pod state %d does not exist", int(p)))
	}
}

// Evidence reports whether a pod's publication may be undone. A release is
// enough by itself: it is the runtime's word about the very thing that
// matters, and waiting for the API would deadlock a runtime that reports the
// pod's end after its volumes are gone. Without a release, a volume that was
// handed out stays, and one that was not goes as soon as the API says that the
// pod is going.
func Evidence(c Custody, p PodState) bool {
	switch c {
	case Released:
		return true
	case HandedOut:
		return false
	case Kept:
		return p == PodDeleting || p == PodTerminal || p == PodAbsent
	default:
		panic(fmt.Sprintf("custody %d does not exist", int(c)))
	}
}
