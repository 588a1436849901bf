package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/volume"
)

// Next decides what to do with one volume. The same input gives the same plan,
// and carrying it out leads to an input with an empty plan.
func Next(in Input) Plan {
	var p Plan
	left := teardown(in, &p)
	if in.Wanted != nil {
		setUp(in, &p)
	}
	if !left && in.Synced && !wants(in) {
		unstage(in, &p)
	}
	return p
}

// teardown plans the end of publications that have evidence against them, and
// reports whether any publication stays.
func teardown(in Input, p *Plan) (left bool) {
	for _, uid := range slices.Sorted(maps.Keys(in.Record.Pods)) {
		pod := in.Record.Pods[uid]
		if !Evidence(pod.Custody, in.PodState[uid]) {
			left = left || pod.Publish.State != Absent
			continue
		}
		if pod.Publish.State != Absent {
			if !in.Driver.Registered {
				p.wait(uid, volume.ReasonDriverMissing, "driver "+in.Record.Key.Driver)
				left = true
				continue
			}
			p.add(Step{Op: OpUnpublish, Key: in.Record.Key, Pod: uid, Target: pod.Publish.Path})
		}
		// A released pod is remembered while its object is there, or it would
		// be published again.
		if in.PodState[uid] == PodAbsent || in.PodState[uid] == PodTerminal || pod.Custody == Kept {
			p.add(Step{Op: OpForget, Key: in.Record.Key, Pod: uid})
		}
	}
	return left
}

// wants reports whether a pod may still be given the volume.
func wants(in Input) bool {
	return in.Wanted != nil && slices.ContainsFunc(in.Wanted.Pods, func(u PodUse) bool { return !released(in, u) && !replaced(in, u) })
}

// replaced reports that the pod has another volume in this one's place.
func replaced(in Input, u PodUse) bool {
	_, former := in.Former[u.Pod.UID]
	return former && !published(in, u)
}

// released reports that the pod's use is over, whatever the API says.
func released(in Input, u PodUse) bool {
	return in.Record.Pods[u.Pod.UID].Custody == Released
}

// setUp plans staging, publication and growing for the pods that want it.
func setUp(in Input, p *Plan) {
	w := in.Wanted
	var owed []PodUse
	for _, u := range w.Pods {
		switch {
		case released(in, u) || published(in, u):
		case replaced(in, u):
			p.wait(u.Pod.UID, volume.ReasonClaimReplaced, "volume "+in.Former[u.Pod.UID].String())
		default:
			owed = append(owed, u)
		}
	}
	if refusal, ok := blocked(in); ok {
		for _, u := range owed {
			p.wait(u.Pod.UID, refusal.Reason, refusal.Detail)
		}
		return
	}
	owed = exclusive(in, owed, p)

	staging := ""
	if in.Driver.Stages {
		staging = StagingPath(in.Root, w.Key, w.PV, w.Block)
		if in.Record.Stage.State != Absent {
			staging = in.Record.Stage.Path
		}
	}
	if len(owed) > 0 && in.Driver.Stages && !in.Record.Stage.holds(in.Mounted) {
		p.add(Step{Op: OpStage, Key: w.Key, Staging: staging})
	}
	for _, u := range owed {
		p.add(Step{
			Op: OpPublish, Key: w.Key, Pod: u.Pod.UID, Staging: staging,
			Target: TargetPath(in.Root, u.Pod.UID, w.PV, w.Block),
		})
	}
	grow(in, staging, owed, p)
}

// published reports whether the pod has the volume already.
func published(in Input, u PodUse) bool {
	return in.Record.Pods[u.Pod.UID].Publish.holds(in.Mounted)
}

// blocked says why nothing at all can be set up.
func blocked(in Input) (volume.Refusal, bool) {
	w := in.Wanted
	switch {
	case w.NeedsAttach:
		return volume.Refusal{Reason: volume.ReasonAttachNeeded, Detail: "driver " + w.Key.Driver}, true
	case !in.Driver.Registered:
		return volume.Refusal{Reason: volume.ReasonDriverMissing, Detail: "driver " + w.Key.Driver}, true
	case in.Record.Stage.State != Absent && in.Record.Block != w.Block:
		// One handle under two PersistentVolumes of different modes.
		return volume.Refusal{Reason: volume.ReasonVolumeMode, Detail: "staged in the other mode"}, true
	default:
		return volume.Refusal{}, false
	}
}

// exclusive lets one pod at a time have a ReadWriteOncePod volume: who has it,
// or else the first.
func exclusive(in Input, owed []PodUse, p *Plan) []PodUse {
	if in.Wanted.AccessMode != string(corev1.ReadWriteOncePod) || len(owed) == 0 {
		return owed
	}
	holder := owed[0].Pod.UID
	for _, uid := range slices.Sorted(maps.Keys(in.Record.Pods)) {
		if in.Record.Pods[uid].Publish.State != Absent {
			holder = uid
			break
		}
	}
	var mine []PodUse
	for _, u := range owed {
		if u.Pod.UID == holder {
			mine = append(mine, u)
		} else {
			p.wait(u.Pod.UID, volume.ReasonVolumeInUse, "ReadWriteOncePod, used by the pod with uid "+holder)
		}
	}
	return mine
}

// grow plans the node's part of growing a volume: through a writable
// publication that is there, or will be after the steps planned so far.
func grow(in Input, staging string, owed []PodUse, p *Plan) {
	w := in.Wanted
	if w.GrowTo == 0 || in.Record.Grow.State == Done && in.Record.GrownTo >= w.GrowTo {
		return
	}
	i := slices.IndexFunc(w.Pods, func(u PodUse) bool {
		coming := slices.ContainsFunc(owed, func(o PodUse) bool { return o.Pod == u.Pod })
		return !u.ReadOnly && !released(in, u) && (coming || published(in, u))
	})
	if i < 0 {
		return
	}
	if !in.Driver.Grows {
		p.wait("", volume.ReasonGrowUnsupported, "driver "+w.Key.Driver)
		return
	}
	target := TargetPath(in.Root, w.Pods[i].Pod.UID, w.PV, w.Block)
	p.add(Step{Op: OpGrow, Key: w.Key, Staging: staging, Target: target, Size: w.GrowTo})
}

// unstage plans the end of staging. Its callers have made sure that nobody has
// the volume and nobody will.
func unstage(in Input, p *Plan) {
	if in.Record.Stage.State == Absent {
		return
	}
	if !in.Driver.Registered {
		p.wait("", volume.ReasonDriverMissing, "driver "+in.Record.Key.Driver)
		return
	}
	p.add(Step{Op: OpUnstage, Key: in.Record.Key, Staging: in.Record.Stage.Path})
}

func (p *Plan) add(s Step) { p.Steps = append(p.Steps, s) }

func (p *Plan) wait(pod string, r volume.Reason, detail string) {
	p.Waits = append(p.Waits, Wait{Pod: pod, Refusal: volume.Refusal{Reason: r, Detail: detail}})
}
