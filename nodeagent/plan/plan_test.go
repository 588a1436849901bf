package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-storage/berth/volume"
)

var testKey = volume.Key{Driver: "d.example", Handle: "h1"}

// node is a volume's world that a transcript changes.
type node struct{ in Input }

func newNode() *node {
	return &node{in: Input{
		Root: "/r", Synced: true,
		Record:   Record{Key: testKey, PV: "pv1", Pods: map[string]PodRecord{}},
		Mounted:  map[string]bool{},
		PodState: map[string]PodState{},
	}}
}

// TestTranscripts plays stories; testdata shows them. Commands:
//
//	driver [registered] [stages] [grows]     what the driver is now
//	want [pods=(a,b:ro)] [grow=N] [mode=M] [block] [attach]    no pods: nil
//	pod NAME STATE     what the API says of a pod
//	custody NAME C     what the runtime said
//	former NAME [HANDLE]    the volume that the pod has in this one's place; or none
//	unsynced, reboot, agent-restart, lose PATH
//	plan               steps and waits
//	do [OP=fail|unknown]    carry the plan out; a step that does not succeed ends it
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		n := newNode()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return n.command(t, d) })
	})
}

func (n *node) command(t *testing.T, d *datadriven.TestData) string {
	arg := func(i int) string { return d.CmdArgs[i].Key }
	switch d.Cmd {
	case "driver":
		n.in.Driver = Driver{Registered: d.HasArg("registered"), Stages: d.HasArg("stages"), Grows: d.HasArg("grows")}
	case "want":
		n.want(t, d)
	case "pod":
		i := slices.IndexFunc(PodStates(), func(s PodState) bool { return s.String() == arg(1) })
		n.in.PodState[arg(0)] = PodStates()[i]
	case "custody":
		c, err := ParseCustody(arg(1))
		if err != nil {
			t.Fatal(err)
		}
		r := n.in.Record.Pods[arg(0)]
		r.Custody = c
		n.in.Record.Pods[arg(0)] = r
	case "former":
		n.in.Former = nil
		if len(d.CmdArgs) == 2 {
			n.in.Former = map[string]volume.Key{arg(0): {Driver: testKey.Driver, Handle: arg(1)}}
		}
	case "unsynced":
		n.in.Synced, n.in.Wanted = false, nil
		clear(n.in.PodState)
	case "synced":
		n.in.Synced = true
	case "reboot":
		clear(n.in.Mounted)
	case "lose":
		delete(n.in.Mounted, arg(0))
	case "plan":
		return n.show(Next(n.in))
	case "do":
		return n.do(d)
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	return "ok\n"
}

func (n *node) want(t *testing.T, d *datadriven.TestData) {
	if !d.HasArg("pods") {
		n.in.Wanted = nil
		return
	}
	w := &Wanted{Key: testKey, PV: "pv1", Block: d.HasArg("block"), NeedsAttach: d.HasArg("attach")}
	if d.HasArg("grow") {
		d.ScanArgs(t, "grow", &w.GrowTo)
	}
	if d.HasArg("mode") {
		d.ScanArgs(t, "mode", &w.AccessMode)
	}
	for _, arg := range d.CmdArgs {
		if arg.Key != "pods" {
			continue
		}
		for _, p := range arg.Vals {
			uid, ro := strings.CutSuffix(p, ":ro")
			w.Pods = append(w.Pods, PodUse{Pod: Pod{UID: uid}, Name: "v", ReadOnly: ro})
			if _, known := n.in.PodState[uid]; !known {
				n.in.PodState[uid] = PodActive
			}
		}
	}
	n.in.Wanted = w
}

func (n *node) show(p Plan) string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintln(&b, s)
	}
	for _, w := range p.Waits {
		fmt.Fprintf(&b, "wait %s %s: %s\n", w.Pod, w.Reason, w.Detail)
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return strings.ReplaceAll(b.String(), StagingPath("/r", testKey, "", false), "STAGING")
}

func (n *node) do(d *datadriven.TestData) string {
	var b strings.Builder
	for _, s := range Next(n.in).Steps {
		result := "ok"
		for _, a := range d.CmdArgs {
			if a.Key == string(s.Op) {
				result = a.Vals[0]
			}
		}
		fmt.Fprintf(&b, "%s %s: %s\n", s.Op, s.Pod, result)
		carryOut(&n.in, s, result)
		if result != "ok" {
			break
		}
	}
	return b.String() + n.state()
}

func (n *node) state() string {
	r := n.in.Record
	var s strings.Builder
	s.WriteString("-> stage " + r.Stage.State.String())
	for _, uid := range slices.Sorted(maps.Keys(r.Pods)) {
		fmt.Fprintf(&s, ", %s %s %s", uid, r.Pods[uid].Publish.State, r.Pods[uid].Custody)
	}
	if r.Grow.State != Absent {
		fmt.Fprintf(&s, ", grow %s %d", r.Grow.State, r.GrownTo)
	}
	return s.String() + "\n"
}

// carryOut does to the record and the mount table what apply would.
func carryOut(in *Input, s Step, result string) {
	r := &in.Record
	set := func(e *Effect, path string, inverse bool) {
		e.BecomeUncertain(path)
		switch {
		case result == "ok" && inverse:
			delete(in.Mounted, path)
			e.BecomeAbsent()
		case result == "ok":
			in.Mounted[path] = true
			e.BecomeDone(true)
		case result == "fail" && !inverse:
			e.BecomeAbsent()
		}
	}
	pod := r.Pods[s.Pod]
	switch s.Op {
	case OpStage:
		set(&r.Stage, s.Staging, false)
	case OpUnstage:
		set(&r.Stage, s.Staging, true)
	case OpPublish:
		set(&pod.Publish, s.Target, false)
		r.Pods[s.Pod] = pod
	case OpUnpublish:
		set(&pod.Publish, s.Target, true)
		r.Pods[s.Pod] = pod
	case OpGrow:
		r.Grow.BecomeUncertain(s.Target)
		switch result {
		case "ok":
			r.Grow.BecomeDone(false)
			r.GrownTo = s.Size
		case "fail":
			r.Grow.BecomeAbsent()
		}
	case OpForget:
		delete(r.Pods, s.Pod)
	}
}

// TestEveryState puts the volume into each combination of staging and
// publication certainty, mount table, custody, pod state, driver and demand,
// and holds the plan to the laws of the package.
func TestEveryState(t *testing.T) {
	count := 0
	for in := range everyInput() {
		count++
		checkLaws(t, in)
		if t.Failed() {
			return
		}
	}
	if count != 2*2*3*3*2*3*5*3*2 {
		t.Errorf("checked %d states", count)
	}
}

func everyInput() func(yield func(Input) bool) {
	bools := []bool{false, true}
	return func(yield func(Input) bool) {
		for _, registered := range bools {
			for _, stages := range bools {
				for _, stage := range Certainties() {
					for _, publish := range Certainties() {
						for _, mounted := range bools {
							for _, custody := range Custodies() {
								for _, state := range PodStates() {
									for _, want := range []string{"", "p", "q"} {
										for _, synced := range bools {
											if !yield(makeInput(registered, stages, stage, publish, mounted, custody, state, want, synced)) {
												return
											}
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

func makeInput(registered, stages bool, stage, publish Certainty, mounted bool, custody Custody, state PodState, want string, synced bool) Input {
	staging, target := StagingPath("/r", testKey, "pv1", false), TargetPath("/r", "p", "pv1", false)
	effect := func(c Certainty, path string) Effect {
		e := Effect{}
		if c != Absent {
			e.BecomeUncertain(path)
		}
		if c == Done {
			e.BecomeDone(true)
		}
		return e
	}
	in := Input{
		Root: "/r", Synced: synced, Driver: Driver{Registered: registered, Stages: stages},
		Record: Record{
			Key: testKey, PV: "pv1", Stage: effect(stage, staging),
			Pods: map[string]PodRecord{"p": {Publish: effect(publish, target), Custody: custody}},
		},
		Mounted:  map[string]bool{staging: mounted && stage == Done, target: mounted && publish == Done},
		PodState: map[string]PodState{"p": state, "q": PodActive},
	}
	// Only an active pod is wanted; that is desired's promise.
	if want != "" && in.PodState[want] == PodActive {
		in.Wanted = &Wanted{Key: testKey, PV: "pv1", Pods: []PodUse{{Pod: Pod{UID: want}}}}
	}
	return in
}

func checkLaws(t *testing.T, in Input) {
	t.Helper()
	p := Next(in)
	pod := in.Record.Pods["p"]
	ops := map[Op]Step{}
	for _, s := range p.Steps {
		if s.Pod == "p" || s.Pod == "" {
			ops[s.Op] = s
		}
	}
	_, unpublishes := ops[OpUnpublish]
	_, unstages := ops[OpUnstage]
	law := func(ok bool, text string) {
		if !ok {
			t.Errorf("%s\ninput: %+v\nsteps: %v\nwaits: %v", text, in, p.Steps, p.Waits)
		}
	}
	law(!unpublishes || Evidence(pod.Custody, in.PodState["p"]), "unpublished without evidence")
	law(!unpublishes || pod.Publish.State != Absent, "unpublished what is not there")
	law(!unstages || in.Synced, "unstaged before the pods are known")
	law(!unstages || pod.Publish.State == Absent || unpublishes, "unstaged under a publication")
	law(!unstages || in.Wanted == nil || pod.Custody == Released && in.Wanted.Pods[0].Pod.UID == "p", "unstaged what is wanted")
	if !in.Driver.Registered {
		for _, s := range p.Steps {
			law(s.Op == OpForget, "a step without a driver")
		}
	}

	// Carrying plans out ends, and ends where it should.
	for round := 0; ; round++ {
		if len(p.Steps) == 0 {
			break
		}
		law(round < 3, "the plan does not come to rest")
		if round >= 3 {
			return
		}
		for _, s := range p.Steps {
			carryOut(&in, s, "ok")
		}
		p = Next(in)
	}
	if !in.Driver.Registered {
		return
	}
	if in.Wanted != nil {
		u := in.Wanted.Pods[0]
		if in.Record.Pods[u.Pod.UID].Custody != Released {
			law(published(in, u), "at rest, the pod that wants the volume does not have it")
			return
		}
	}
	if Evidence(in.Record.Pods["p"].Custody, in.PodState["p"]) && in.Synced {
		law(in.Record.Stage.State == Absent && in.Record.Pods["p"].Publish.State == Absent, "at rest, something is leaked")
	}
}

func TestEvidence(t *testing.T) {
	// The whole table, because everything else leans on it.
	want := map[Custody]map[PodState]bool{
		Kept:      {PodDeleting: true, PodTerminal: true, PodAbsent: true},
		HandedOut: {},
		Released:  {PodUnknown: true, PodActive: true, PodDeleting: true, PodTerminal: true, PodAbsent: true},
	}
	for _, c := range Custodies() {
		for _, s := range PodStates() {
			if got := Evidence(c, s); got != want[c][s] {
				t.Errorf("Evidence(%s, %s) = %v", c, s, got)
			}
		}
	}
}

func TestWordsRoundTrip(t *testing.T) {
	for _, c := range Certainties() {
		if got, err := ParseCertainty(c.String()); got != c || err != nil {
			t.Errorf("%v: %v %v", c, got, err)
		}
	}
	for _, c := range Custodies() {
		if got, err := ParseCustody(c.String()); got != c || err != nil {
			t.Errorf("%v: %v %v", c, got, err)
		}
	}
	if _, err := ParseCertainty("maybe"); err == nil {
		t.Error("an unknown certainty is read")
	}
	if _, err := ParseCustody(""); err == nil {
		t.Error("an empty custody is read")
	}
}

func TestLayoutIsTheKubelets(t *testing.T) {
	for got, want := range map[string]string{
		// The folder is sha256("h1"), as csi_attacher.go's makeDeviceMountPath names it.
		StagingPath("/k", testKey, "pv1", false): "/k/plugins/kubernetes.io/csi/d.example/33112ee14ee469c3eb52fe90322ec81dd404a0093d565a6d71ce77cbc8124e3b/globalmount",
		TargetPath("/k", "uid", "pv1", false):    "/k/pods/uid/volumes/kubernetes.io~csi/pv1/mount",
		TargetPath("/k", "uid", "pv1", true):     "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv1/uid",
		StagingPath("/k", testKey, "pv1", true):  "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv1",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
