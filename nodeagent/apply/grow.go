package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/util/retry"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/nodeagent/plan"
)

// grow does the node's part of growing a claim (KEP-1790): NodeResizePending
// → NodeResizeInProgress → the call → capacity written, status and conditions
// cleared. Only then is it recorded as done, so that a crash before that writes
// the claim again.
func (r *Runner) grow(ctx context.Context, s plan.Step, w *plan.Wanted, d Driver) error {
	capability, err := capabilityFor(ctx, d, w, firstFSGroup(w))
	if err != nil {
		return err
	}
	secrets, err := r.secret(ctx, w.ExpandSecret)
	if err != nil {
		return err
	}
	owed := true
	err = r.claim(ctx, w.PVC, func(c *corev1.PersistentVolumeClaim) {
		if owed = growthOwed(c); owed {
			c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInProgress
		}
	})
	if err != nil {
		return err
	}
	return r.bringAbout(ctx, s.Key, setUp{
		path:     s.Target,
		edit:     growEffect,
		identify: func(*plan.Record) {},
		prepare:  func() error { return nil },
		call: func(ctx context.Context) error {
			if !owed {
				return nil // somebody finished it: what was planned on is old
			}
			err := call(ctx, "NodeExpandVolume", func(ctx context.Context) error {
				_, err := d.Node().NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
					VolumeId:          s.Key.Handle,
					VolumePath:        s.Target,
					StagingTargetPath: s.Staging,
					CapacityRange:     &csi.CapacityRange{RequiredBytes: s.Size},
					VolumeCapability:  capability,
					Secrets:           secrets,
				})
				return err
			})
			return errors.Join(err, r.explainFailure(ctx, w, err))
		},
		finish: func(ctx context.Context) error {
			return r.claim(ctx, w.PVC, func(c *corev1.PersistentVolumeClaim) { finishGrowth(c, s.Size) })
		},
		done:    func(rec *plan.Record) { rec.GrownTo = s.Size },
		discard: func() error { return nil },
	})
}

// growthOwed reports whether the claim waits for the node.
func growthOwed(c *corev1.PersistentVolumeClaim) bool {
	switch c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		return true
	default:
		return false
	}
}

// resizeConditions are those that speak of growing; a finished growth ends them.
var resizeConditions = [...]corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimResizing,
	corev1.PersistentVolumeClaimFileSystemResizePending,
	corev1.PersistentVolumeClaimControllerResizeError,
	corev1.PersistentVolumeClaimNodeResizeError,
}

func finishGrowth(c *corev1.PersistentVolumeClaim, size int64) {
	if !growthOwed(c) {
		return
	}
	now := resource.NewQuantity(size, resource.BinarySI)
	// The controller may have allocated more since: then that is still owed.
	if want, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && want.Cmp(*now) > 0 {
		return
	}
	if c.Status.Capacity == nil {
		c.Status.Capacity = corev1.ResourceList{}
	}
	c.Status.Capacity[corev1.ResourceStorage] = *now
	delete(c.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(k corev1.PersistentVolumeClaimCondition) bool {
		return slices.Contains(resizeConditions[:], k.Type)
	})
}

// explainFailure writes a failure for good into the claim: infeasible, which
// makes it the controller's again, or a condition with the driver's words.
func (r *Runner) explainFailure(ctx context.Context, w *plan.Wanted, err error) error {
	outcome := csiclient.OutcomeOf(cause(err))
	if outcome != csiclient.Retry && outcome != csiclient.Stop {
		return nil
	}
	infeasible := outcome == csiclient.Stop || csiclient.IsNotFound(cause(err))
	return r.claim(ctx, w.PVC, func(c *corev1.PersistentVolumeClaim) {
		if !growthOwed(c) {
			return
		}
		if infeasible {
			c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInfeasible
		}
		setCondition(c, corev1.PersistentVolumeClaimNodeResizeError, cause(err).Error())
	})
}

// cause is the driver's own error inside that of a call.
func cause(err error) error {
	if c, ok := errors.AsType[*callError](err); ok {
		return c.err
	}
	return err
}

func setCondition(c *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType, message string) {
	for i := range c.Status.Conditions {
		if k := &c.Status.Conditions[i]; k.Type == kind {
			k.Status, k.Message = corev1.ConditionTrue, message
			return
		}
	}
	c.Status.Conditions = append(c.Status.Conditions, corev1.PersistentVolumeClaimCondition{
		Type: kind, Status: corev1.ConditionTrue, Message: message, LastTransitionTime: metav1.Now(),
	})
}

// claim changes a claim's status by a patch on what it was just read as; fields
// that this client does not know survive.
func (r *Runner) claim(ctx context.Context, ref plan.Claim, change func(*corev1.PersistentVolumeClaim)) error {
	claims := r.cfg.Claims.PersistentVolumeClaims(ref.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		current, err := claims.Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if string(current.UID) != ref.UID {
			return fmt.Errorf("it is another object now, with uid %s", current.UID)
		}
		next := current.DeepCopy()
		change(next)
		patch, err := claimPatch(current, next)
		if err != nil || patch == nil {
			return err
		}
		_, err = claims.Patch(ctx, ref.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil // nobody waits any more
	}
	if err != nil {
		return fmt.Errorf("updating claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return nil
}

// claimPatch is the difference with the resourceVersion that it starts from;
// nil for no difference.
func claimPatch(current, next *corev1.PersistentVolumeClaim) ([]byte, error) {
	from, err := json.Marshal(current)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(next)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(from, to, corev1.PersistentVolumeClaim{})
	if err != nil || string(patch) == "{}" {
		return nil, err
	}
	fields := make(map[string]any)
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, err
	}
	fields["metadata"] = map[string]any{"resourceVersion": current.ResourceVersion, "uid": current.UID}
	return json.Marshal(fields)
}
