package binder

import (
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// Judge holds what one goroutine needs to judge nodes, so that judging one
// allocates nothing.
type Judge struct {
	binding.Judge
	node   binding.Node
	binder *Binder
}

// Judge takes a judge, until its Release.
func (b *Binder) Judge() *Judge { return b.judges.Get().(*Judge) }

// Release gives the judge back. What it answered is of no use from then on.
func (j *Judge) Release() { j.binder.judges.Put(j) }

// Refuse judges one node (upstream: FindPodVolumes, and the Filter of
// NodeVolumeLimits): what keeps the pod from it, nothing where it fits. An error
// is something broken. tenants are the pods to count, asked for where they
// matter; the answer is valid until the next call.
func (j *Judge) Refuse(q *Question, object *corev1.Node, tenants func() cache.Tenants) ([]volume.Refusal, error) {
	csiNode, err := j.binder.meet(&j.node, q, object)
	if err != nil {
		return nil, err
	}
	verdict := j.Find(q.Question, &j.node)
	if verdict.Err != nil {
		return nil, verdict.Err
	}
	refusals := verdict.Refusals
	if q.asksAttach(&j.node) {
		refusals = append(refusals, j.binder.checkAttach(q, object, csiNode, tenants)...)
	}
	return refusals, nil
}

// Score is how well the pod's volumes fit on the node, 0 to 100; 0 where they do
// not fit.
func (j *Judge) Score(q *Question, object *corev1.Node) (int64, error) {
	if _, err := j.binder.meet(&j.node, q, object); err != nil {
		return 0, err
	}
	return j.Find(q.Question, &j.node).Score(j.binder.shape), nil
}

// Plan judges the node again and plans the pod's volumes on it. The question is
// of one moment, so the verdict is that of Refuse, but for attach limits.
func (b *Binder) Plan(q *Question, object *corev1.Node) (binding.BindPlan, []volume.Refusal, error) {
	var met binding.Node
	if _, err := b.meet(&met, q, object); err != nil {
		return binding.BindPlan{}, nil, err
	}
	verdict := binding.Find(q.Question, met)
	if !verdict.OK() {
		return binding.BindPlan{}, verdict.Refusals, verdict.Err
	}
	return binding.Plan(object.Name, verdict), nil, nil
}

// Shun makes the nodes that refused the pod's claims lately the last choice: as
// long as any other node that would take the pod has room for its volumes, they
// are refused. It returns the question to go on with.
func (b *Binder) Shun(q *Question, pod *corev1.Pod, nodes iter.Seq[*corev1.Node]) (*Question, error) {
	if !q.Wary() {
		return q, nil
	}
	shunning := &Question{Question: q.Shun(), everywhere: q.everywhere, attached: q.attached, needed: q.needed, unlimited: q.unlimited}
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	j := b.Judge()
	defer j.Release()
	for object := range nodes {
		if !takes(object, pod, required) {
			continue
		}
		if _, err := b.meet(&j.node, shunning, object); err != nil {
			return nil, err
		}
		if j.Find(shunning.Question, &j.node).OK() {
			return shunning, nil
		}
	}
	return q, nil
}

// takes reports whether the node is one for the pod, as far as its labels and
// taints tell: room where the pod may not go is no reason to shun another node.
func takes(node *corev1.Node, pod *corev1.Pod, required nodeaffinity.RequiredNodeAffinity) bool {
	if node == nil || node.Spec.Unschedulable {
		return false
	}
	if fits, err := required.Match(node); err != nil || !fits {
		return false
	}
	_, untolerated := corehelpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, true)
	return !untolerated
}

// Helps reports whether a change of a node made it one that the pod's volumes
// fit on. before is nil for a new node. Attach limits are not looked at.
func (b *Binder) Helps(q *Question, before, after *corev1.Node) (bool, error) {
	csiNode, err := b.nodes.CSINode(after.Name)
	if err != nil {
		return false, err
	}
	judged := func(object *corev1.Node) binding.Verdict {
		node := q.Node(object)
		node.Migrated = migrated(csiNode)
		return binding.Find(q.Question, node)
	}
	now := judged(after)
	if !now.OK() {
		return false, now.Err
	}
	if before == nil {
		return true, nil
	}
	was := judged(before)
	return !was.OK(), nil
}

// meet makes of a node what the question is asked of. The node itself is not
// read where the question's view remembers it: a pass over all nodes waits for
// memory, and for little else.
func (b *Binder) meet(n *binding.Node, q *Question, object *corev1.Node) (*storagev1.CSINode, error) {
	*n = q.Node(object)
	if !q.asksAttach(n) && !q.Pod.InTree {
		return nil, nil
	}
	csiNode, err := b.nodes.CSINode(n.Name)
	n.Migrated = migrated(csiNode)
	return csiNode, err
}

// migrated are the in-tree plugins that a node handles as CSI drivers.
func migrated(csiNode *storagev1.CSINode) string {
	if csiNode == nil {
		return ""
	}
	return csiNode.Annotations[volume.AnnMigratedPlugins]
}

// asksAttach reports whether attaching the pod's volumes to the node is a question.
func (q *Question) asksAttach(node *binding.Node) bool {
	return len(q.attached) > 0 && (!q.unlimited || node.Tainted)
}

// checkAttach judges attach limits and missing drivers.
func (b *Binder) checkAttach(q *Question, node *corev1.Node, csiNode *storagev1.CSINode, tenants func() cache.Tenants) []volume.Refusal {
	wanted := q.everywhere
	if csiNode != nil {
		wanted = q.attached
	}
	if r := missingDriver(q, wanted, node, csiNode); r != nil {
		return []volume.Refusal{*r}
	}
	limit := func(driver string) (int64, bool) { return b.limit(node.Name, csiNode, driver) }
	limited := false
	for i := range wanted {
		if _, limited = limit(wanted[i].Driver); limited {
			break
		}
	}
	if !limited {
		return nil
	}
	return binding.CheckAttach(wanted, limit, b.occupancy(tenants()))
}

// limit is what the node's CSINode says, or said until lately: a limit that
// vanished is not the absence of one.
func (b *Binder) limit(node string, csiNode *storagev1.CSINode, driver string) (int64, bool) {
	count, published, _ := cache.CountOf(csiNode, driver)
	if count > 0 {
		return count, true
	}
	if kept, ok := b.cache.Remembered(node, driver); ok {
		return kept, true
	}
	return count, published
}

// occupancy is what is attached to the node. Other pods than the cycle began
// with are a dry run: what is attached for a pod that is left out would be
// detached with it.
func (b *Binder) occupancy(t cache.Tenants) *cache.Occupancy {
	if b.cache.Remembers(t) {
		return b.cache.Occupancy(t)
	}
	base, known := b.nodes.Tenants(t.Node)
	if !known || base.Generation == t.Generation {
		return b.cache.Occupancy(t)
	}
	return b.cache.WhatIf(b.cache.Occupancy(base), t)
}

// missingDriver refuses a node without a driver that must be there first: one
// whose CSIDriver says so (preventPodSchedulingIfMissing), or that the node still
// waits for, as its startup taint tells (<driver>/…).
func missingDriver(q *Question, wanted []volume.Key, node *corev1.Node, csiNode *storagev1.CSINode) *volume.Refusal {
	for i := range wanted {
		driver := wanted[i].Driver
		if !slices.Contains(q.needed, driver) && !HasStartupTaint(node, driver) {
			continue
		}
		if _, _, registered := cache.CountOf(csiNode, driver); !registered {
			return &volume.Refusal{Reason: volume.ReasonDriverMissing, Detail: "driver " + driver}
		}
	}
	return nil
}

// HasStartupTaint reports whether the node carries a startup taint of the
// driver, as ebs.csi.aws.com/agent-not-ready is one.
func HasStartupTaint(node *corev1.Node, driver string) bool {
	for i := range node.Spec.Taints {
		if rest, ok := strings.CutPrefix(node.Spec.Taints[i].Key, driver); ok && strings.HasPrefix(rest, "/") {
			return true
		}
	}
	return false
}
