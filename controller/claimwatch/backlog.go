package claimwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// Backlog labels the node's claims that are without the label: those that were
// last written before the policy was made, or while it failed. It is a Runnable
// of the manager.
type Backlog struct {
	Scope scope.Scope
	// Live reads from the API server itself, all claims.
	Live   client.Reader
	Writer client.Writer
	// Since is when the policy was made.
	Since time.Time
	Clock clock.Clock
}

const (
	// API servers follow a new policy soon, as each looks about once a second
	// (k8s.io/apiserver, policy/generic, policy_source.go); settled is how long a
	// slow one may take.
	soon    = 3 * time.Second
	settled = time.Minute
	// pageSize bounds what one answer holds; only metadata is asked for.
	pageSize = 500
)

// Start goes through the claims once, and again where the policy is so young
// that an API server may not have followed it yet: soon, so that the first claims
// of a new cluster do not wait, and when all have settled. It returns when that is
// done or ctx ends; it goes on trying over errors.
func (b *Backlog) Start(ctx context.Context) error {
	if !b.until(ctx) {
		return nil
	}
	for _, age := range []time.Duration{soon, settled} {
		// Clocks differ: a policy from the future is as young as one made now.
		rest := min(age, age-b.Clock.Since(b.Since))
		if rest <= 0 {
			continue
		}
		if !b.pause(ctx, rest) || !b.until(ctx) {
			return nil
		}
	}
	return nil
}

// until repeats pass until it succeeds; false says that ctx ended first.
func (b *Backlog) until(ctx context.Context) bool {
	pauses := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Minute}
	for {
		err := b.pass(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		klog.FromContext(ctx).Error(err, "cannot label every claim of this node; trying again")
		if !b.pause(ctx, pauses.Step()) {
			return false
		}
	}
}

func (b *Backlog) pause(ctx context.Context, d time.Duration) bool {
	timer := b.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// pass goes through the claims, page by page, and returns what kept it from
// labelling one.
func (b *Backlog) pass(ctx context.Context) error {
	var failed []error
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaimList"))
	for next := ""; ; {
		if err := b.Live.List(ctx, list, client.Limit(pageSize), client.Continue(next)); err != nil {
			return errors.Join(append(failed, fmt.Errorf("listing claims: %w", err))...)
		}
		for i := range list.Items {
			if claim := &list.Items[i]; unlabelled(b.Scope, claim) {
				failed = append(failed, b.label(ctx, claim))
			}
		}
		if next = list.Continue; next == "" {
			return errors.Join(failed...)
		}
	}
}

// unlabelled reports a claim of the scope that a cache of labelled claims lacks.
func unlabelled(s scope.Scope, claim metav1.Object) bool {
	return s.OwnsClaim(claim) && claim.GetLabels()[volume.LabelNode] != s.Node
}

// label labels the claim as it was read: one that changed since is judged anew
// by the next pass.
func (b *Backlog) label(ctx context.Context, claim *metav1.PartialObjectMetadata) error {
	claim.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	base := claim.DeepCopy()
	metav1.SetMetaDataLabel(&claim.ObjectMeta, volume.LabelNode, b.Scope.Node)
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := b.Writer.Patch(ctx, claim, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("labelling claim %s: %w", klog.KObj(claim), err))
	}
	klog.FromContext(ctx).V(2).Info("labelled claim", "pvc", klog.KObj(claim))
	return nil
}
