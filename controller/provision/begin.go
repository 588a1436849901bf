package provision

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/volume"
)

// eligible ends the pass for claims that are not to be provisioned here. A
// claim with a record is not judged: whatever became of it, confirm brings the
// record to an end.
func (r *Reconciler) eligible(ctx context.Context, p *pass) (step, error) {
	if p.recorded {
		return next(), nil
	}
	published, err := r.published(ctx, p)
	if err != nil {
		return end(), err
	}
	verdict := decide(question{scope: r.scope, claim: p.claim, class: p.class, published: published})
	klog.FromContext(ctx).V(4).Info("judged claim", "reason", verdict.Why)
	switch verdict.Action {
	case Provision:
		return next(), nil
	case Refuse:
		return r.refuse(p, string(verdict.Why), verdict.Detail), nil
	case Leave:
		if r.refused.Left(p.key.UID, string(verdict.Why)) == 0 {
			r.refused.Hold(p.key.UID, string(verdict.Why))
			notes.Normal(r.events, p.claim, reasonExternal, actionProvision, verdict.Detail)
		}
	case Ignore:
		if verdict.Why == WhyGone {
			r.refused.Forget(p.key.UID)
		}
	}
	return end(), nil
}

// published reports whether the cache knows the claim's PersistentVolume.
func (r *Reconciler) published(ctx context.Context, p *pass) (bool, error) {
	err := r.client.Get(ctx, p.pvName(), &corev1.PersistentVolume{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the claim's PersistentVolume: %w", err)
	}
	return true, nil
}

// refuse tells the user that the claim cannot be provisioned as it is, and
// lets it rest. what tells one refused request from another.
func (r *Reconciler) refuse(p *pass, what, detail string) step {
	if left := r.refused.Left(p.key.UID, what); left > 0 {
		return endFor(left)
	}
	notes.Warning(r.events, p.claim, reasonFailed, actionProvision, detail)
	return endFor(r.refused.Hold(p.key.UID, what))
}

// begin writes the record, before anything can have happened. The request of
// a call whose outcome is unknown is repeated unchanged, even if the node's
// labels or the class are others by now: the driver may be working on it.
func (r *Reconciler) begin(ctx context.Context, p *pass) (step, error) {
	if p.recorded && p.record.State != StateFailed {
		return next(), nil
	}
	if p.recorded && (p.claim == nil || p.class == nil || !r.scope.OwnsClaim(p.claim)) {
		// Nothing new to ask for: confirm sees to the end of the record.
		return next(), nil
	}
	request, s, err := r.request(ctx, p)
	if err != nil || s.done {
		return s, err
	}
	if left := r.refused.Left(p.key.UID, fingerprint(p.class, request)); left > 0 {
		return endFor(left), nil
	}
	p.fresh = !p.recorded
	p.record, p.recorded = Start(p.key.NamespacedName, p.key.UID, request), true
	if err := r.records.Put(p.record); err != nil {
		return end(), err
	}
	if p.fresh {
		notes.Normal(r.events, p.claim, reasonProvisioning, actionProvision, "provisioning a volume on node "+r.scope.Node)
	}
	return next(), nil
}

// request gathers the inputs of buildRequest.
func (r *Reconciler) request(ctx context.Context, p *pass) (*csi.CreateVolumeRequest, step, error) {
	node, csiNode := &corev1.Node{}, &storagev1.CSINode{}
	here := types.NamespacedName{Name: r.scope.Node}
	if err := r.client.Get(ctx, here, node); err != nil {
		return nil, end(), fmt.Errorf("reading node %s: %w", r.scope.Node, err)
	}
	if err := r.client.Get(ctx, here, csiNode); err != nil {
		return nil, end(), fmt.Errorf("reading CSINode %s: %w", r.scope.Node, err)
	}
	segments, err := segmentsOf(node, csiNode, r.scope.Driver)
	if err != nil {
		return nil, end(), err
	}
	if !volume.Allowed(p.class.AllowedTopologies, node.Labels) {
		return nil, r.refuse(p, "topology "+string(p.class.UID)+" "+segments.String(), fmt.Sprintf(
			"node %s (%s) lies outside the allowedTopologies of class %s", node.Name, segments, p.class.Name)), nil
	}
	multiWriter, err := r.capabilities.ControllerHas(ctx, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if err != nil {
		return nil, end(), fmt.Errorf("asking the driver for its capabilities: %w", err)
	}
	request, err := buildRequest(requestInput{
		claim: p.claim, class: p.class, segments: segments,
		multiWriter: multiWriter, defaultFSType: r.defaultFSType,
	})
	if err != nil {
		return nil, r.refuse(p, "request "+string(p.class.UID), err.Error()), nil
	}
	return request, next(), nil
}

// fingerprint tells one request from another, for what the driver refused. A
// class that was made anew counts as another, even with equal content.
func fingerprint(class *storagev1.StorageClass, request *csi.CreateVolumeRequest) string {
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		// Requests are built here of valid strings; without a fingerprint the
		// request only is not told from others of the class.
		return string(class.UID)
	}
	return string(class.UID) + "/" + string(content)
}
