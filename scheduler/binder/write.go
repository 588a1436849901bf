package binder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// Written are the versions that the API server gave to what was written.
type Written struct {
	// Volumes by name, Claims by key.
	Volumes, Claims map[string]string
	// mine are the volumes whose reservation this attempt wrote, and not an
	// earlier one or a person.
	mine map[string]bool
}

// attemptsMax bounds how often one object is read again after a conflict. Each
// attempt meets a newer object, so there is nothing to wait for between them.
const attemptsMax = 5

// Write performs the plan: all preconditions first, then all writes at once.
// Where one fails the others stand, for Undo or for the next attempt at the pod.
func (a *Attempt) Write(ctx context.Context) error {
	if err := a.precheck(); err != nil {
		return err
	}
	plan, w := a.plan, &a.written
	var mu sync.Mutex
	// No derived context: one failure must not cut off another write, whose
	// outcome would then be uncertain.
	var group errgroup.Group
	for _, b := range plan.Binds {
		group.Go(func() error {
			version, mine, err := a.writeVolume(ctx, b)
			mu.Lock()
			defer mu.Unlock()
			w.Volumes[b.Volume], w.mine[b.Volume] = version, mine
			return err
		})
	}
	for _, s := range plan.Selects {
		group.Go(func() error {
			version, err := a.writeClaim(ctx, s, plan.Node)
			mu.Lock()
			defer mu.Unlock()
			w.Claims[s.Claim] = version
			return err
		})
	}
	return group.Wait()
}

// precheck looks at every object before the first write.
func (a *Attempt) precheck() error {
	plan := a.plan
	for _, b := range plan.Binds {
		if _, err := a.judgedClaim(b.Claim, b.ClaimUID); err != nil {
			return err
		}
		pv := a.cache.Volume(b.Volume)
		if pv == nil {
			return fmt.Errorf("volume %s does not exist any more", b.Volume)
		}
		if _, err := reservable(pv, b); err != nil {
			return err
		}
	}
	for _, s := range plan.Selects {
		pvc, err := a.judgedClaim(s.Claim, s.ClaimUID)
		if err != nil {
			return err
		}
		if _, err := selectable(pvc, s, plan.Node); err != nil {
			return err
		}
	}
	return nil
}

// reservable tells whether the volume is reserved for the claim already, or an
// error where it cannot be.
func reservable(pv *corev1.PersistentVolume, b binding.Bind) (done bool, err error) {
	ref := pv.Spec.ClaimRef
	switch {
	case string(pv.UID) != b.VolumeUID:
		return false, fmt.Errorf("volume %s was replaced by another of its name", b.Volume)
	case pv.DeletionTimestamp != nil:
		return false, fmt.Errorf("volume %s is being deleted", b.Volume)
	case ref == nil:
		return false, nil
	case ref.Namespace+"/"+ref.Name != b.Claim || ref.UID != "" && string(ref.UID) != b.ClaimUID:
		return false, fmt.Errorf("volume %s was taken by claim %s/%s", b.Volume, ref.Namespace, ref.Name)
	}
	return string(ref.UID) == b.ClaimUID, nil
}

// selectable tells whether the claim is selected for the node already, or an
// error where it cannot be.
func selectable(pvc *corev1.PersistentVolumeClaim, s binding.Select, node string) (done bool, err error) {
	selected := pvc.Annotations[volume.AnnSelectedNode]
	switch {
	case string(pvc.UID) != s.ClaimUID:
		return false, fmt.Errorf("claim %s was replaced by another of its name", s.Claim)
	case pvc.DeletionTimestamp != nil:
		return false, fmt.Errorf("claim %s is being deleted", s.Claim)
	case selected != "" && selected != node:
		return false, fmt.Errorf("claim %s: another node, %s, was selected", s.Claim, selected)
	case selected == node:
		return true, nil
	case pvc.Spec.VolumeName != "":
		return false, fmt.Errorf("claim %s was bound to volume %s meanwhile", s.Claim, pvc.Spec.VolumeName)
	}
	return false, nil
}

// writeVolume reserves a volume for its claim and returns the version that says
// so, and whether the reservation is this call's own: a volume that a person
// reserved stays theirs.
func (a *Attempt) writeVolume(ctx context.Context, b binding.Bind) (version string, mine bool, err error) {
	pv := a.cache.Volume(b.Volume)
	for attempt := 1; ; attempt++ {
		if pv == nil {
			return "", false, fmt.Errorf("volume %s does not exist any more", b.Volume)
		}
		done, err := reservable(pv, b)
		if err != nil {
			return "", false, err
		}
		if !done {
			mine = pv.Spec.ClaimRef == nil
			var again bool
			if pv, again, err = a.patchVolume(ctx, pv, b); again && attempt < attemptsMax {
				continue
			}
			if err != nil {
				return "", false, err
			}
			klog.FromContext(ctx).V(2).Info("reserved volume for claim", "pv", pv.Name, "pvc", b.Claim)
		}
		a.cache.WroteVolume(pv)
		if done {
			mine = a.earlier[b.Volume] == pv.ResourceVersion
		}
		return pv.ResourceVersion, mine, nil
	}
}

// patchVolume writes the reservation. On a conflict it returns the volume as it is
// now, to be judged again, with the conflict as its error.
func (a *Attempt) patchVolume(ctx context.Context, pv *corev1.PersistentVolume, b binding.Bind) (now *corev1.PersistentVolume, again bool, err error) {
	patch, err := a.volumePatch(pv, b)
	if err != nil {
		return nil, false, err
	}
	volumes := a.client.CoreV1().PersistentVolumes()
	now, err = volumes.Patch(ctx, b.Volume, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		return now, false, nil
	}
	err = fmt.Errorf("reserving volume %s for claim %s: %w", b.Volume, b.Claim, err)
	if apierrors.IsConflict(err) {
		if fresh, readErr := volumes.Get(ctx, b.Volume, metav1.GetOptions{}); readErr == nil {
			return fresh, true, err
		}
	}
	return nil, false, err
}

// volumePatch sets claimRef, on the very version that was judged. The
// annotation tells the PV controller that it may undo the binding; a volume
// that a person reserved does not get it (component-helpers, GetBindVolumeToClaim).
func (a *Attempt) volumePatch(pv *corev1.PersistentVolume, b binding.Bind) ([]byte, error) {
	pvc, err := a.judgedClaim(b.Claim, b.ClaimUID)
	if err != nil {
		return nil, err
	}
	meta := map[string]any{"resourceVersion": pv.ResourceVersion}
	if pv.Spec.ClaimRef == nil {
		meta["annotations"] = map[string]string{volume.AnnBoundByController: "yes"}
	}
	return json.Marshal(map[string]any{
		"metadata": meta,
		"spec": map[string]any{"claimRef": corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1",
			Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID, ResourceVersion: pvc.ResourceVersion,
		}},
	})
}

// writeClaim selects the node on a claim and returns the version that says so.
func (a *Attempt) writeClaim(ctx context.Context, s binding.Select, node string) (string, error) {
	pvc, err := a.judgedClaim(s.Claim, s.ClaimUID)
	if err != nil {
		return "", err
	}
	for attempt := 1; ; attempt++ {
		done, err := selectable(pvc, s, node)
		if err != nil {
			return "", err
		}
		if !done {
			var again bool
			if pvc, again, err = a.patchClaim(ctx, pvc, s, node); again && attempt < attemptsMax {
				continue
			}
			if err != nil {
				return "", err
			}
			klog.FromContext(ctx).V(2).Info("selected node for claim", "pvc", klog.KObj(pvc), "node", klog.KRef("", node))
		}
		a.cache.WroteClaim(pvc)
		return pvc.ResourceVersion, nil
	}
}

// patchClaim writes the selected node. On a conflict it returns the claim as it is
// now, to be judged again, with the conflict as its error.
func (a *Attempt) patchClaim(ctx context.Context, pvc *corev1.PersistentVolumeClaim, s binding.Select, node string) (now *corev1.PersistentVolumeClaim, again bool, err error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": pvc.ResourceVersion,
		"annotations":     map[string]string{volume.AnnSelectedNode: node},
	}})
	if err != nil {
		return nil, false, err
	}
	claims := a.client.CoreV1().PersistentVolumeClaims(pvc.Namespace)
	now, err = claims.Patch(ctx, pvc.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		return now, false, nil
	}
	unanswered := uncertain(err)
	err = fmt.Errorf("selecting node %s for claim %s: %w", node, s.Claim, err)
	switch {
	case unanswered:
		a.cache.MayHaveWrittenClaim(s.ClaimUID)
	case apierrors.IsConflict(err):
		if fresh, readErr := claims.Get(ctx, pvc.Name, metav1.GetOptions{}); readErr == nil {
			return fresh, true, err
		}
	}
	return nil, false, err
}

// uncertain reports whether a failed write may have happened all the same: the
// server did not answer, or answered that something broke on its side.
func uncertain(err error) bool {
	if err == nil {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code == 0 || code >= http.StatusInternalServerError
}
