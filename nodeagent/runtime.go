package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/nodeagent/desired"
	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/nodeagent/podvolumes"
	"github.com/berth-storage/berth/volume"
)

// Status implements podvolumes.Agent.
func (a *Agent) Status(uid string) (podvolumes.Status, <-chan struct{}) {
	// Taken first: a change during the look closes it.
	changed := a.changes.wait()
	snapshot := a.source.Snapshot()
	pod, found := snapshot.Pods[uid]
	s := podvolumes.Status{
		Synced: snapshot.Synced, Found: found, Pod: pod.Pod, State: pod.State,
		Released: a.isReleased(uid),
	}
	s.HandedOut = len(pod.Volumes) > 0
	for _, v := range pod.Volumes {
		s.Volumes = append(s.Volumes, a.volumeStatus(uid, v))
		custody := plan.Kept
		if v.Problem == nil {
			custody = a.store.Get(v.Key).Pods[uid].Custody
		}
		s.HandedOut = s.HandedOut && custody == plan.HandedOut
		s.Released = s.Released || custody == plan.Released
	}
	if found && !s.Released {
		return s, changed // who asks wants to know what is ready, not what is held
	}
	for _, key := range a.store.Holding(uid) {
		if r := a.store.Get(key).Pods[uid]; r.Publish.State != plan.Absent {
			s.Held = append(s.Held, a.heldBecause(key, uid))
		}
	}
	return s, changed
}

func (a *Agent) isReleased(uid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.released[uid]
}

// volumeStatus tells how far a volume is for a pod. It is ready once it is
// published, this run has seen that nothing about it is owed to the pod, and a
// growth that was due at the start succeeded or was at least tried.
func (a *Agent) volumeStatus(uid string, v desired.PodVolume) podvolumes.Volume {
	s := podvolumes.Volume{Name: v.Name, Block: v.Block, ReadOnly: v.ReadOnly}
	if v.Problem != nil {
		s.Why = v.Problem.String()
		return s
	}
	a.mu.Lock()
	now, planned := a.volumes[v.Key]
	a.mu.Unlock()
	publication := a.store.Get(v.Key).Pods[uid].Publish
	growTried := now.failed != nil && now.failed.Step.Op == plan.OpGrow
	owed := slices.ContainsFunc(now.plan.Steps, func(step plan.Step) bool {
		switch step.Op {
		case plan.OpStage:
			return true
		case plan.OpPublish:
			return step.Pod == uid
		case plan.OpGrow:
			return !growTried
		case plan.OpUnpublish, plan.OpUnstage, plan.OpForget:
			return false
		default:
			panic("step " + string(step.Op) + " does not exist")
		}
	})
	if s.Ready = planned && now.broken == nil && !owed && publication.State == plan.Done; s.Ready {
		s.Path = publication.Path
		return s
	}
	s.Why = whyNot(now, uid)
	return s
}

// whyNot puts the most useful thing that is known first.
func whyNot(p progress, uid string) string {
	switch {
	case p.broken != nil:
		return volume.Refusal{Reason: volume.ReasonStepFailed, Detail: p.broken.Error()}.String()
	case p.failed != nil:
		return volume.Refusal{Reason: volume.ReasonStepFailed, Detail: p.failed.Error()}.String()
	}
	for _, w := range p.plan.Waits {
		if w.Pod == uid {
			return w.String()
		}
	}
	return volume.ReasonPending.Sentence()
}

func (a *Agent) heldBecause(key volume.Key, uid string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("volume %s: %s", key, whyNot(a.volumes[key], uid))
}

// Bound implements podvolumes.Agent.
func (a *Agent) Bound(ctx context.Context, pod plan.Pod) (bool, error) {
	found, err := a.cfg.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return string(found.UID) == pod.UID && found.Spec.NodeName == a.cfg.NodeName, nil
}

// errGone says that a volume is not published any more.
var errGone = errors.New("not published any more")

// HandOut implements podvolumes.Agent. Volumes marked before one that cannot
// be are marked back: the runtime was told nothing.
func (a *Agent) HandOut(uid string) (bool, error) {
	var marked []volume.Key
	for _, v := range a.source.Snapshot().Pods[uid].Volumes {
		fresh := false
		err := a.store.Update(v.Key, func(r *plan.Record) error {
			p := r.Pods[uid]
			if p.Publish.State != plan.Done || p.Custody == plan.Released {
				return errGone
			}
			fresh = p.Custody == plan.Kept
			p.Custody = plan.HandedOut
			r.Pods[uid] = p
			return nil
		})
		if err != nil {
			for _, key := range marked {
				err = errors.Join(err, a.setCustody(key, uid, plan.HandedOut, plan.Kept))
			}
			if errors.Is(err, errGone) {
				return false, nil
			}
			return false, err
		}
		if fresh {
			marked = append(marked, v.Key)
		}
	}
	return true, nil
}

// setCustody changes the custody of one publication if it is from.
func (a *Agent) setCustody(key volume.Key, uid string, from, to plan.Custody) error {
	return a.store.Update(key, func(r *plan.Record) error {
		if p, ok := r.Pods[uid]; ok && p.Custody == from {
			p.Custody = to
			r.Pods[uid] = p
		}
		return nil
	})
}

// Release implements podvolumes.Agent. The mark is also made for volumes that
// the pod wants but does not have, so that they are not published afterwards.
func (a *Agent) Release(uid string) error {
	pod, found := a.source.Snapshot().Pods[uid]
	keys := a.store.Holding(uid)
	if found {
		a.mu.Lock()
		a.released[uid] = true
		a.mu.Unlock()
		for _, v := range pod.Volumes {
			if v.Problem == nil && !slices.Contains(keys, v.Key) {
				keys = append(keys, v.Key)
			}
		}
	}
	for _, key := range keys {
		err := a.store.Update(key, func(r *plan.Record) error {
			p := r.Pods[uid]
			if found {
				p.Pod = pod.Pod
			}
			p.Custody = plan.Released
			r.Pods[uid] = p
			return nil
		})
		if err != nil {
			return err
		}
		a.queue.Add(key)
	}
	a.changes.send()
	return nil
}

// Report implements podvolumes.Agent. A pod that is not listed is given back,
// not released: the runtime may start it again, as after a reboot.
func (a *Agent) Report(uids []string) error {
	for _, key := range a.store.Keys() {
		for uid := range a.store.Get(key).Pods {
			from, to := plan.HandedOut, plan.Kept
			if slices.Contains(uids, uid) {
				from, to = to, from
			}
			if err := a.setCustody(key, uid, from, to); err != nil {
				return err
			}
		}
		a.queue.Add(key)
	}
	return nil
}
