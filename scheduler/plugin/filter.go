package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
	"github.com/berth-storage/berth/volume"
)

// Filter implements fwk.FilterPlugin. It changes nothing, so that dry runs and
// simulations may call it as they like.
func (p *Plugin) Filter(_ context.Context, cs fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	if p.resizeOnly(pod) {
		return nil
	}
	s, err := readState(cs)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if s.none {
		return nil
	}
	if info.Node() == nil {
		return fwk.AsStatus(errors.New("node not found"))
	}
	j := p.judges.Get().(*judge)
	defer p.judges.Put(j)
	csiNode, err := p.meet(&j.node, s, s.question, info.Node())
	if err != nil {
		return fwk.AsStatus(err)
	}
	verdict := j.Find(s.question, &j.node)
	if verdict.Err != nil {
		return fwk.AsStatus(verdict.Err)
	}
	refusals := verdict.Refusals
	if s.asksAttach(&j.node) {
		refusals = append(refusals, p.checkAttach(s, info, csiNode)...)
	}
	if len(refusals) > 0 {
		return s.said.status(refusals)
	}
	return nil
}

// meet makes of a node what the question is asked of. The node itself is not
// read where the question's view remembers it: a pass over all nodes waits for
// memory, and for little else.
func (p *Plugin) meet(n *binding.Node, s *state, q *binding.Question, object *corev1.Node) (*storagev1.CSINode, error) {
	*n = q.Node(object)
	if !s.asksAttach(n) && !s.inTree() {
		return nil, nil
	}
	csiNode, err := p.readCSINode(n.Name)
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

// checkAttach judges attach limits and missing drivers.
func (p *Plugin) checkAttach(s *state, info fwk.NodeInfo, csiNode *storagev1.CSINode) []volume.Refusal {
	wanted := s.wanted
	if csiNode != nil {
		wanted = s.wantedCSI
	}
	if r := missingDriver(s, wanted, info.Node(), csiNode); r != nil {
		return []volume.Refusal{*r}
	}
	node := info.Node().Name
	limit := func(driver string) (int64, bool) { return p.limit(node, csiNode, driver) }
	limited := false
	for i := range wanted {
		if _, limited = limit(wanted[i].Driver); limited {
			break
		}
	}
	if !limited {
		return nil
	}
	return binding.CheckAttach(wanted, limit, p.occupancy(info))
}

// limit is what the node's CSINode says, or said until lately: a limit that
// vanished is not the absence of one.
func (p *Plugin) limit(node string, csiNode *storagev1.CSINode, driver string) (int64, bool) {
	count, published, _ := cache.CountOf(csiNode, driver)
	if count > 0 {
		return count, true
	}
	if kept, ok := p.cache.Remembered(node, driver); ok {
		return kept, true
	}
	return count, published
}

// occupancy is what is attached to the node. A NodeInfo of other pods than the
// cycle's snapshot has is a dry run: what is attached for a pod that it leaves
// out would be detached with it.
func (p *Plugin) occupancy(info fwk.NodeInfo) *cache.Occupancy {
	t := tenantsOf(info)
	if p.cache.Remembers(t) {
		return p.cache.Occupancy(t)
	}
	base, err := p.handle.SnapshotSharedLister().NodeInfos().Get(t.Node)
	if err != nil || base.GetGeneration() == t.Generation {
		return p.cache.Occupancy(t)
	}
	return p.cache.WhatIf(p.cache.Occupancy(tenantsOf(base)), t)
}

func tenantsOf(info fwk.NodeInfo) cache.Tenants {
	return cache.Tenants{Node: info.Node().Name, Generation: info.GetGeneration(), Pods: func(yield func(*corev1.Pod) bool) {
		for _, pi := range info.GetPods() {
			if !yield(pi.GetPod()) {
				return
			}
		}
	}}
}

// asksAttach reports whether attaching the pod's volumes to the node is a question.
func (s *state) asksAttach(node *binding.Node) bool {
	return len(s.wantedCSI) > 0 && (!s.unlimited || node.Tainted)
}

// readCSINode is nil where the node has none. It asks the handle and not the
// informer, because a cluster autoscaler puts its simulated nodes there.
func (p *Plugin) readCSINode(name string) (*storagev1.CSINode, error) {
	manager := p.handle.SharedCSIManager()
	if manager == nil {
		return nil, nil
	}
	csiNode, err := manager.CSINodes().Get(name)
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		return nil, nil
	default:
		return nil, fmt.Errorf("reading CSINode %s: %w", name, err)
	}
	return csiNode, nil
}

// inTree reports whether what the pod's volumes reach depends on the CSINode.
func (s *state) inTree() bool { return s.question != nil && s.question.Pod.InTree }

// missingDriver refuses a node without a driver that must be there first: one
// whose CSIDriver says so (preventPodSchedulingIfMissing), or that the node still
// waits for, as its startup taint tells (<driver>/…).
func missingDriver(s *state, wanted []volume.Key, node *corev1.Node, csiNode *storagev1.CSINode) *volume.Refusal {
	for i := range wanted {
		driver := wanted[i].Driver
		if !s.needs(driver) && !tainted(node, driver) {
			continue
		}
		if _, _, registered := cache.CountOf(csiNode, driver); !registered {
			return &volume.Refusal{Reason: volume.ReasonDriverMissing, Detail: "driver " + driver}
		}
	}
	return nil
}

func (s *state) needs(driver string) bool {
	return slices.Contains(s.needed, driver)
}

// tainted reports whether the node carries a startup taint of the driver, as
// ebs.csi.aws.com/agent-not-ready is one.
func tainted(node *corev1.Node, driver string) bool {
	for i := range node.Spec.Taints {
		if rest, ok := strings.CutPrefix(node.Spec.Taints[i].Key, driver); ok && strings.HasPrefix(rest, "/") {
			return true
		}
	}
	return false
}

// PreScore implements fwk.PreScorePlugin: pods that consume no storage need no
// score from each node.
func (p *Plugin) PreScore(_ context.Context, cs fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	s, err := readState(cs)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if s.none || len(s.question.Pod.Delayed) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score implements fwk.ScorePlugin.
func (p *Plugin) Score(_ context.Context, cs fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	s, err := readState(cs)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	if s.none || len(s.question.Pod.Delayed) == 0 {
		return 0, nil
	}
	j := p.judges.Get().(*judge)
	defer p.judges.Put(j)
	if _, err := p.meet(&j.node, s, s.question, info.Node()); err != nil {
		return 0, fwk.AsStatus(err)
	}
	return j.Find(s.question, &j.node).Score(p.shape), nil
}

// ScoreExtensions implements fwk.ScorePlugin: scores span the whole scale as
// they are.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }
