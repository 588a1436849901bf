package cluster

import (
	"context"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-storage/berth/volume"
)

// sight is the cluster as one round sees it.
type sight struct {
	claims  map[types.UID]claim
	classes map[string]class
	nodes   []node
	offers  []offer
	volumes []made
	// made are the claims that have a PersistentVolume; exists are the nodes.
	made   map[types.UID]bool
	exists map[string]bool
}

// shared lists without copying; nothing that is read here is changed.
func (r *Reconciler) shared(ctx context.Context, list client.ObjectList, what string, opts ...client.ListOption) error {
	if err := r.client.List(ctx, list, append(opts, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("listing %s: %w", what, err)
	}
	return nil
}

// indexOpen finds the claims that a round may have to do with: those of the driver
// whose binding is not complete. A cluster has many claims, and few of these.
const indexOpen = "berth.open"

func openClaims(driver string) client.IndexerFunc {
	return func(o client.Object) []string {
		pvc, ok := o.(*corev1.PersistentVolumeClaim)
		if !ok {
			return nil
		}
		if _, ours := readClaim(driver, pvc); !ours || pvc.Annotations[volume.AnnBindCompleted] != "" {
			return nil
		}
		return []string{"true"}
	}
}

// look reads open claims, classes and the nodes that are selected, and the rest
// only if some claim needs a decision.
func (r *Reconciler) look(ctx context.Context) (*sight, error) {
	s := &sight{
		claims: make(map[types.UID]claim), classes: make(map[string]class),
		made: make(map[types.UID]bool), exists: make(map[string]bool),
	}
	var claims corev1.PersistentVolumeClaimList
	var classes storagev1.StorageClassList
	if err := r.shared(ctx, &claims, "claims", client.MatchingFields{indexOpen: "true"}); err != nil {
		return nil, err
	}
	if err := r.shared(ctx, &classes, "StorageClasses"); err != nil {
		return nil, err
	}
	for i := range claims.Items {
		if c, ours := readClaim(r.driver, &claims.Items[i]); ours {
			s.claims[c.uid] = c
		}
	}
	if err := r.lookForHeld(ctx, s); err != nil {
		return nil, err
	}
	for _, sc := range classes.Items {
		if sc.Provisioner == r.driver {
			s.classes[sc.Name] = class{
				name: sc.Name, topology: sc.AllowedTopologies,
				immediate: ptr.Deref(sc.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingImmediate,
			}
		}
	}
	if err := r.lookForNodes(ctx, s); err != nil {
		return nil, err
	}
	if !s.open() {
		return s, nil
	}
	return s, r.lookCloser(ctx, s)
}

// lookForHeld adds the claims that held space and are not open any more.
func (r *Reconciler) lookForHeld(ctx context.Context, s *sight) error {
	for uid, name := range r.memory.held {
		if _, open := s.claims[uid]; open {
			continue
		}
		pvc := &corev1.PersistentVolumeClaim{}
		err := r.client.Get(ctx, name, pvc)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading claim %s: %w", name, err)
		}
		if c, ours := readClaim(r.driver, pvc); err == nil && ours && c.uid == uid {
			s.claims[uid] = c
		}
	}
	return nil
}

// lookForNodes asks for each node that a claim is selected for.
func (r *Reconciler) lookForNodes(ctx context.Context, s *sight) error {
	for _, c := range s.claims {
		if _, asked := s.exists[c.selected]; asked || c.selected == "" {
			continue
		}
		err := r.client.Get(ctx, types.NamespacedName{Name: c.selected}, &corev1.Node{})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading node %s: %w", c.selected, err)
		}
		s.exists[c.selected] = err == nil
	}
	return nil
}

// open reports whether some claim may need a decision.
func (s *sight) open() bool {
	for _, c := range s.claims {
		if waits(c, s.classes, nil) || abandoned(c, s.exists, nil) {
			return true
		}
	}
	return false
}

func (r *Reconciler) lookCloser(ctx context.Context, s *sight) error {
	var list corev1.NodeList
	var volumes corev1.PersistentVolumeList
	var csiNodes storagev1.CSINodeList
	var capacities storagev1.CSIStorageCapacityList
	for _, l := range []struct {
		list client.ObjectList
		what string
	}{{&list, "nodes"}, {&volumes, "PersistentVolumes"}, {&csiNodes, "CSINodes"}, {&capacities, "capacity objects"}} {
		if err := r.shared(ctx, l.list, l.what); err != nil {
			return err
		}
	}
	for i := range volumes.Items {
		v := readVolume(&volumes.Items[i])
		s.volumes = append(s.volumes, v)
		if v.claim != "" {
			s.made[v.claim] = true
		}
	}
	registered := make(map[string]bool)
	for _, n := range csiNodes.Items {
		registered[n.Name] = slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == r.driver })
	}
	byKey := make(map[string][]string)
	for i := range list.Items {
		n := &list.Items[i]
		s.nodes = append(s.nodes, node{name: n.Name, labels: n.Labels, barred: bar(n), registered: registered[n.Name]})
		byKey[n.Labels[volume.TopologyNodeKey]] = append(byKey[n.Labels[volume.TopologyNodeKey]], n.Name)
	}
	for i := range capacities.Items {
		c := &capacities.Items[i]
		if _, ours := s.classes[c.StorageClassName]; !ours {
			continue
		}
		if o, some := readCapacity(c); some {
			o.nodes = reached(c.NodeTopology, s.nodes, byKey)
			s.offers = append(s.offers, o)
		}
	}
	return nil
}

// bar is why a node takes no new volume: the same that keeps new pods away. A
// node that never said that it is ready is not.
func bar(n *corev1.Node) cause {
	switch {
	case n.DeletionTimestamp != nil:
		return causeDeleting
	case n.Spec.Unschedulable:
		return causeUnschedulable
	case !ready(n):
		return causeNotReady
	default:
		return fits
	}
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func readVolume(pv *corev1.PersistentVolume) made {
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	v := made{bytes: volume.Bytes(capacity)}
	v.pool, v.allocation = volume.NumberOf(pv.Annotations)
	if pv.Spec.ClaimRef != nil {
		v.claim = pv.Spec.ClaimRef.UID
	}
	return v
}

// readCapacity reads a capacity object; false for one that says nothing, which
// offers nothing.
func readCapacity(c *storagev1.CSIStorageCapacity) (offer, bool) {
	if c.Capacity == nil && c.MaximumVolumeSize == nil {
		return offer{}, false
	}
	o := offer{
		key: c.Namespace + "/" + c.Name, version: c.ResourceVersion, class: c.StorageClassName,
		capacity: math.MaxInt64, maximum: math.MaxInt64,
	}
	if c.Capacity != nil {
		o.capacity = volume.Bytes(*c.Capacity)
	}
	if c.MaximumVolumeSize != nil {
		o.maximum = volume.Bytes(*c.MaximumVolumeSize)
	}
	if o.pool, o.allocation = volume.NumberOf(c.Annotations); o.allocation == volume.Unnumbered {
		o.pool = "object " + o.key
	}
	return o, true
}

// reached are the nodes of a capacity object: no selector is nowhere. Almost
// every object names one node by the driver's own key, so only the nodes with
// its value are tried.
func reached(topology *metav1.LabelSelector, all []node, byKey map[string][]string) []string {
	selector, err := metav1.LabelSelectorAsSelector(topology)
	if err != nil {
		// The API server accepts none such; it is nowhere.
		return nil
	}
	if topology != nil && len(topology.MatchLabels) == 1 && len(topology.MatchExpressions) == 0 {
		if value, ok := topology.MatchLabels[volume.TopologyNodeKey]; ok && value != "" {
			return byKey[value]
		}
	}
	var out []string
	for _, n := range all {
		if selector.Matches(labels.Set(n.labels)) {
			out = append(out, n.name)
		}
	}
	return out
}
