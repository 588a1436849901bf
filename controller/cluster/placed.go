package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-storage/berth/controller/internal/notes"
	"github.com/berth-storage/berth/volume"
)

// placed binds the delayed claims of pods that somebody put on a node without a
// scheduler, by setting spec.nodeName. No scheduler looks at such a pod, so that
// its claims would wait for their first consumer for ever. It does what a
// scheduler does with a chosen node: a volume that fits is reserved for the
// claim, and otherwise the node is selected for it. It serves claims of every
// driver, as nobody else does.
//
// A claim is read from the API server before it is touched: the pod of a
// scheduler may be seen here before its claims are seen bound.
type placed struct {
	client client.Client
	live   client.Reader
	events notes.Recorder
	clock  clock.PassiveClock
	retell time.Duration
	// courses: pod → claim → what became of it so far. Lost with the leader.
	courses map[types.NamespacedName]map[types.UID]*course
}

// course is what was done for one claim.
type course struct {
	// tries counts the selections of the node; the last one was at that time.
	tries int
	at    time.Time
	// volume was reserved for the claim, or may have been: the cache of volumes
	// need not show it yet.
	volume string
	told   telling
}

const (
	// pauseFirst is before the second try of a claim that was given back; each
	// further one is twice as long, up to pauseMax. The node stays the same, so
	// only time can help; what changes there need not be published.
	pauseFirst = 10 * time.Second
	pauseMax   = 5 * time.Minute
)

// left is how long the next try has to wait.
func (c *course) left(now time.Time) time.Duration {
	if c.tries == 0 {
		return 0
	}
	pause := pauseFirst
	for range c.tries - 1 {
		pause = min(2*pause, pauseMax)
	}
	return c.at.Add(pause).Sub(now)
}

// course is that of a claim of the pod, made where it is new.
func (r *placed) course(pod *corev1.Pod, c delayedClaim) *course {
	key := client.ObjectKeyFromObject(pod)
	if r.courses[key] == nil {
		r.courses[key] = make(map[types.UID]*course)
	}
	if r.courses[key][c.object.UID] == nil {
		r.courses[key][c.object.UID] = &course{}
	}
	return r.courses[key][c.object.UID]
}

// Reconcile looks at one pod.
func (r *placed) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pod, node := &corev1.Pod{}, &corev1.Node{}
	err := r.client.Get(ctx, req.NamespacedName, pod)
	if err == nil && waitsPlaced(pod) {
		err = r.client.Get(ctx, types.NamespacedName{Name: pod.Spec.NodeName}, node)
	}
	switch {
	case apierrors.IsNotFound(err), err == nil && node.Name == "":
		// A pod of a node that does not exist is deleted by the pod garbage collector.
		delete(r.courses, req.NamespacedName)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading pod %s: %w", req.NamespacedName, err)
	}
	claims, err := r.unbound(ctx, pod)
	if err != nil || len(claims) == 0 {
		return reconcile.Result{}, err
	}
	var wait time.Duration
	var failed error
	for _, c := range claims {
		again, err := r.bind(ctx, pod, node, c)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("pod %s, claim %s: %w", req.NamespacedName, c.object.Name, err))
		}
		if again > 0 && (wait == 0 || again < wait) {
			wait = again
		}
	}
	return reconcile.Result{RequeueAfter: wait}, failed
}

// waitsPlaced reports whether the pod is on a node and has not begun there.
func waitsPlaced(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "")
}

// delayedClaim is a claim that waits for its first consumer, and its class.
type delayedClaim struct {
	object *corev1.PersistentVolumeClaim
	class  *storagev1.StorageClass
}

// unbound are the pod's claims that a scheduler would have decided on, as the
// API server has them, the smallest first.
func (r *placed) unbound(ctx context.Context, pod *corev1.Pod) ([]delayedClaim, error) {
	var out []delayedClaim
	for _, name := range claimNames(pod) {
		c, err := r.readDelayed(ctx, r.client, pod, name)
		if err == nil && c != nil {
			c, err = r.readDelayed(ctx, r.live, pod, name)
		}
		if err != nil {
			return nil, err
		}
		if c != nil && !slices.ContainsFunc(out, func(o delayedClaim) bool { return o.object.UID == c.object.UID }) {
			out = append(out, *c)
		}
	}
	slices.SortStableFunc(out, func(a, b delayedClaim) int {
		return a.object.Spec.Resources.Requests.Storage().Cmp(*b.object.Spec.Resources.Requests.Storage())
	})
	return out, nil
}

// claimNames are the names of a pod's claims.
func claimNames(pod *corev1.Pod) []string {
	var out []string
	for i := range pod.Spec.Volumes {
		switch vol := &pod.Spec.Volumes[i]; {
		case vol.PersistentVolumeClaim != nil:
			out = append(out, vol.PersistentVolumeClaim.ClaimName)
		case vol.Ephemeral != nil:
			out = append(out, ephemeral.VolumeClaimName(pod, vol))
		}
	}
	return out
}

// readDelayed is nil for a claim that is not there, not the pod's, or not
// waiting for its first consumer.
func (r *placed) readDelayed(ctx context.Context, from client.Reader, pod *corev1.Pod, name string) (*delayedClaim, error) {
	pvc, class := &corev1.PersistentVolumeClaim{}, &storagev1.StorageClass{}
	err := from.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: name}, pvc)
	if err == nil && pvc.Spec.VolumeName == "" && pvc.Annotations[volume.AnnSelectedNode] == "" && pvc.DeletionTimestamp == nil && ownedBy(pod, pvc) {
		if of := storagehelpers.GetPersistentVolumeClaimClass(pvc); of != "" {
			err = r.client.Get(ctx, types.NamespacedName{Name: of}, class)
		}
	}
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading claim %s/%s and its class: %w", pod.Namespace, name, err)
	}
	// What was not found is empty.
	if class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		return nil, nil
	}
	return &delayedClaim{pvc, class}, nil
}

// ownedBy is false for the namesake of a pod's ephemeral claim.
func ownedBy(pod *corev1.Pod, pvc *corev1.PersistentVolumeClaim) bool {
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if vol.Ephemeral != nil && ephemeral.VolumeClaimName(pod, vol) == pvc.Name {
			return ephemeral.VolumeIsForPod(pod, pvc) == nil
		}
	}
	return true
}

// bind gives a claim a volume of the node, or the node. It returns when to look
// again, 0 for never.
func (r *placed) bind(ctx context.Context, pod *corev1.Pod, node *corev1.Node, c delayedClaim) (time.Duration, error) {
	so := r.course(pod, c)
	if done, err := r.reserved(ctx, c, so); done || err != nil {
		return 0, err
	}
	// Another pod of the claim, on whatever node, may have got it a volume.
	for _, claims := range r.courses {
		if other := claims[c.object.UID]; other != nil && other != so {
			if done, err := r.reserved(ctx, c, other); done || err != nil {
				return 0, err
			}
		}
	}
	pv, err := r.match(ctx, node, c, r.taken(pod, c))
	switch {
	case err != nil:
		return 0, err
	case pv != nil:
		so.volume = pv.Name
		return 0, r.reserve(ctx, pod, node, c, pv)
	case c.class.Provisioner == "" || c.class.Provisioner == volume.NoProvisioner:
		r.refuse(pod, c, fmt.Sprintf("no available volume of class %s that fits can be reached from node %s", c.class.Name, node.Name))
		return 0, nil
	case !volume.Allowed(c.class.AllowedTopologies, node.Labels):
		r.refuse(pod, c, fmt.Sprintf("node %s lies outside the allowedTopologies of class %s", node.Name, c.class.Name))
		return 0, nil
	}
	// A claim that is selected for a node without its driver would stay so.
	registered, err := r.registered(ctx, node, c.class.Provisioner)
	switch {
	case err != nil:
		return 0, err
	case !registered:
		r.refuse(pod, c, fmt.Sprintf("driver %s is not registered on node %s", c.class.Provisioner, node.Name))
		return 0, nil
	}
	if left := so.left(r.clock.Now()); left > 0 {
		r.refuse(pod, c, fmt.Sprintf("the provisioner gave node %s back, and is asked again from time to time", node.Name))
		return left, nil
	}
	if err := r.selectNode(ctx, pod, node, c); err != nil {
		return 0, err
	}
	so.tries, so.at = so.tries+1, r.clock.Now()
	return 0, nil
}

// registered reports whether the provisioner serves the node, as far as that can
// be told: one that is no CSI driver registers nowhere.
func (r *placed) registered(ctx context.Context, node *corev1.Node, provisioner string) (bool, error) {
	name := types.NamespacedName{Name: provisioner}
	err := r.client.Get(ctx, name, &storagev1.CSIDriver{})
	csiNode := &storagev1.CSINode{}
	if err == nil {
		err = client.IgnoreNotFound(r.client.Get(ctx, types.NamespacedName{Name: node.Name}, csiNode))
	} else if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking whether driver %s is on node %s: %w", provisioner, node.Name, err)
	}
	return slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == provisioner }), nil
}

// reserved reports whether a volume that was taken for the claim is its own.
func (r *placed) reserved(ctx context.Context, c delayedClaim, so *course) (bool, error) {
	if so.volume == "" {
		return false, nil
	}
	pv := &corev1.PersistentVolume{}
	err := r.live.Get(ctx, types.NamespacedName{Name: so.volume}, pv)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return false, fmt.Errorf("reading volume %s: %w", so.volume, err)
	case err == nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.object.UID:
		return true, nil
	}
	so.volume = ""
	return false, nil
}

// taken are the volumes that other claims of the pod took, which the cache need
// not show yet.
func (r *placed) taken(pod *corev1.Pod, c delayedClaim) map[string]*corev1.PersistentVolume {
	out := make(map[string]*corev1.PersistentVolume)
	for uid, so := range r.courses[client.ObjectKeyFromObject(pod)] {
		if uid != c.object.UID && so.volume != "" {
			out[so.volume] = nil
		}
	}
	return out
}

// match is the smallest free volume that fits, or one that is reserved for the
// claim; nil for none.
func (r *placed) match(ctx context.Context, node *corev1.Node, c delayedClaim, taken map[string]*corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	var list corev1.PersistentVolumeList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	all := make([]*corev1.PersistentVolume, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	pv, err := storagehelpers.FindMatchingVolume(c.object, all, node, taken, true, true)
	if err != nil {
		return nil, fmt.Errorf("looking for a volume: %w", err)
	}
	return pv, nil
}

// reserve names the claim in the volume; the PV controller completes the binding.
func (r *placed) reserve(ctx context.Context, pod *corev1.Pod, node *corev1.Node, c delayedClaim, pv *corev1.PersistentVolume) error {
	changed, dirty, err := storagehelpers.GetBindVolumeToClaim(pv, c.object)
	if err != nil {
		return fmt.Errorf("reserving volume %s: %w", pv.Name, err)
	}
	if !dirty {
		return nil
	}
	if err := r.client.Update(ctx, changed); err != nil {
		return fmt.Errorf("reserving volume %s: %w", pv.Name, err)
	}
	r.tell(pod, c, fmt.Sprintf("volume %s of node %s is bound to it", pv.Name, node.Name))
	klog.FromContext(ctx).V(2).Info("reserved volume for the claim of a pod without scheduler", "pod", klog.KObj(pod), "pvc", klog.KObj(c.object), "pv", pv.Name, "node", node.Name)
	return nil
}

// selectNode asks the node's provisioner for the claim's volume.
func (r *placed) selectNode(ctx context.Context, pod *corev1.Pod, node *corev1.Node, c delayedClaim) error {
	changed := c.object.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = make(map[string]string, 1)
	}
	changed.Annotations[volume.AnnSelectedNode] = node.Name
	if err := r.client.Patch(ctx, changed, client.MergeFromWithOptions(c.object, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("selecting node %s: %w", node.Name, err)
	}
	r.tell(pod, c, "node "+node.Name+" is to provide the volume")
	klog.FromContext(ctx).V(2).Info("selected node for the claim of a pod without scheduler", "pod", klog.KObj(pod), "pvc", klog.KObj(c.object), "node", node.Name)
	return nil
}

// tell says on both objects what was done in the scheduler's place.
func (r *placed) tell(pod *corev1.Pod, c delayedClaim, what string) {
	notes.Normal(r.events, c.object, reasonPlaced, actionPlaced, fmt.Sprintf("pod %s was put on its node without a scheduler; %s", pod.Name, what))
	notes.Normal(r.events, pod, reasonPlaced, actionPlaced, fmt.Sprintf("the pod was put on its node without a scheduler; claim %s: %s", c.object.Name, what))
}

// refuse says on the pod why its claim stays unbound.
func (r *placed) refuse(pod *corev1.Pod, c delayedClaim, why string) {
	so, now := r.course(pod, c), r.clock.Now()
	if so.told.causes == why && now.Sub(so.told.at) < r.retell {
		return
	}
	so.told = telling{causes: why, at: now}
	notes.Warning(r.events, pod, reasonFailed, actionPlaced, fmt.Sprintf(
		"the pod was put on its node without a scheduler, and claim %s cannot be bound there: %s; a pod without spec.nodeName goes where its claims can be bound", c.object.Name, why))
}
