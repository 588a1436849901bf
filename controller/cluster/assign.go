package cluster

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/volume"
)

// wants lists the claims that wait for a node, and holds the space that is
// promised: by the claims of the cache, and by the promises that it does not
// show yet. Claims that no node can serve are told so.
func (r *Reconciler) wants(s *sight) (wants []want, held []hold) {
	clear(r.memory.held)
	for _, c := range s.claims {
		if holds(c, s.made) {
			r.memory.held[c.uid] = c.name
			held = append(held, holdOf(c, c.selected))
		}
		p, promised := r.memory.promises[c.uid]
		waiting := waits(c, s.classes, s.made)
		switch {
		case promised && (p.written != "" || !waiting):
			held = append(held, p.hold)
		case !waiting:
		case c.refused != "":
			r.tell(c, c.refused, c.refused)
		default:
			wants = append(wants, want{claim: c, class: s.classes[c.class], tried: r.memory.tried[c.uid], repeat: p.hold.node})
		}
	}
	return wants, held
}

// assign decides for every waiting claim and writes what was decided.
func (r *Reconciler) assign(ctx context.Context, s *sight) error {
	wants, held := r.wants(s)
	if len(wants) == 0 {
		return nil
	}
	var failed error
	for _, v := range placeAll(newRoom(s.offers, s.volumes, held), s.nodes, wants) {
		if v.node == "" {
			r.tell(v.want.claim, v.causes(), v.text())
			continue
		}
		if err := r.assignOne(ctx, v); err != nil {
			failed = errors.Join(failed, fmt.Errorf("claim %s: %w", v.want.claim.name, err))
		}
	}
	return failed
}

// assignOne writes a selection, on the very claim that was decided on.
func (r *Reconciler) assignOne(ctx context.Context, v verdict) error {
	c := v.want.claim
	r.memory.open(v)
	changed := c.object.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = make(map[string]string, 1)
	}
	changed.Annotations[volume.AnnSelectedNode] = v.node
	err := r.client.Patch(ctx, changed, client.MergeFromWithOptions(c.object, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return r.assignFailed(ctx, v, err)
	}
	r.memory.written(c, v.node, changed.ResourceVersion)
	notes.Normal(r.events, c.object, reasonAssigned, actionAssign, "node "+v.node+" is to provide the volume")
	klog.FromContext(ctx).V(2).Info("assigned claim", "pvc", klog.KObj(c.object), "node", v.node)
	return nil
}

// assignFailed finds out what became of the write. Until that is known the
// promise stays, and the next round writes it to the same node again.
func (r *Reconciler) assignFailed(ctx context.Context, v verdict, cause error) error {
	c := v.want.claim
	now := &corev1.PersistentVolumeClaim{}
	err := r.live.Get(ctx, c.name, now)
	switch {
	case apierrors.IsNotFound(err) || err == nil && now.UID != c.uid:
		r.memory.undone(c.uid, v.node)
		return nil
	case err != nil:
		return fmt.Errorf("assigning node %s: %w", v.node, errors.Join(cause, err))
	case now.Annotations[volume.AnnSelectedNode] != "":
		// This write, or somebody else's: either way space is held there.
		if now.Annotations[volume.AnnSelectedNode] != v.node {
			r.memory.undone(c.uid, v.node)
		}
		r.memory.written(c, now.Annotations[volume.AnnSelectedNode], now.ResourceVersion)
		return nil
	case now.ResourceVersion != c.version:
		// The write names a version that is over: it cannot happen any more.
		r.memory.undone(c.uid, v.node)
	}
	return fmt.Errorf("assigning node %s: %w", v.node, cause)
}

// tell tells a claim's user why it waits: when the causes change, and again
// before the event of last time expires.
func (r *Reconciler) tell(c claim, causes, text string) {
	now := r.clock.Now()
	last, told := r.memory.told[c.uid]
	if told && last.causes == causes && now.Sub(last.at) < r.retell {
		return
	}
	r.memory.told[c.uid] = telling{causes: causes, at: now}
	notes.Warning(r.events, c.object, reasonFailed, actionAssign, text)
}
