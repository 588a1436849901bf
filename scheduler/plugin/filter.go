package plugin

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// Filter implements fwk.FilterPlugin.
func (p *Plugin) Filter(_ context.Context, cs fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	s, err := readState(cs)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if s.none {
		return nil
	}
	node := info.Node()
	verdict := binding.Find(s.question.Pod, nodeOf(node), s.question.View)
	refusals, err := p.checkAttach(s, info)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if refusals = append(verdict.Refusals, refusals...); len(refusals) > 0 {
		return statusOf(refusals)
	}
	s.keep(node.Name, verdict)
	return nil
}

// checkAttach judges attach limits and missing drivers.
func (p *Plugin) checkAttach(s *state, info fwk.NodeInfo) ([]volume.Refusal, error) {
	if len(s.wanted) == 0 {
		return nil, nil
	}
	csiNode, err := p.csiNode(info.Node().Name)
	if err != nil {
		return nil, err
	}
	if r := p.missingDriver(s.wanted, csiNode); r != nil {
		return []volume.Refusal{*r}, nil
	}
	attach := binding.Attach{Limits: limitsOf(csiNode), Wanted: s.wanted}
	limited := false
	for k := range s.wanted {
		_, has := attach.Limits[k.Driver]
		limited = limited || has
	}
	if !limited {
		return nil, nil
	}
	attach.Present = p.present(info)
	return binding.CheckAttach(attach), nil
}

// csiNode comes from the handle and not from the informer, because a cluster
// autoscaler puts its simulated nodes there. nil means that it does not exist.
func (p *Plugin) csiNode(name string) (*storagev1.CSINode, error) {
	manager := p.handle.SharedCSIManager()
	if manager == nil {
		return nil, nil
	}
	csiNode, err := manager.CSINodes().Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading CSINode %s: %w", name, err)
	}
	return csiNode, nil
}

// missingDriver refuses a node without a driver that must be there first
// (CSIDriver.spec.preventPodSchedulingIfMissing).
func (p *Plugin) missingDriver(wanted map[volume.Key]struct{}, csiNode *storagev1.CSINode) *volume.Refusal {
	for k := range wanted {
		driver := p.cache.Driver(k.Driver)
		if driver == nil || driver.Spec.PreventPodSchedulingIfMissing == nil || !*driver.Spec.PreventPodSchedulingIfMissing {
			continue
		}
		if !registered(csiNode, k.Driver) {
			return &volume.Refusal{Reason: volume.ReasonDriverMissing, Detail: "driver " + k.Driver}
		}
	}
	return nil
}

func registered(csiNode *storagev1.CSINode, driver string) bool {
	if csiNode == nil {
		return false
	}
	for i := range csiNode.Spec.Drivers {
		if csiNode.Spec.Drivers[i].Name == driver {
			return true
		}
	}
	return false
}

func limitsOf(csiNode *storagev1.CSINode) map[string]int64 {
	limits := map[string]int64{}
	if csiNode == nil {
		return limits
	}
	for _, d := range csiNode.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = int64(*d.Allocatable.Count)
		}
	}
	return limits
}

// present are the volumes of the pods on the node, assumed ones included.
func (p *Plugin) present(info fwk.NodeInfo) map[volume.Key]struct{} {
	out := map[volume.Key]struct{}{}
	for _, other := range info.GetPods() {
		pod := other.GetPod()
		for _, ref := range claimRefs(pod) {
			if key, ok := p.cache.VolumeKey(pod.Namespace, ref.name); ok {
				out[key] = struct{}{}
			}
		}
	}
	return out
}

// PreScore implements fwk.PreScorePlugin: pods that consume no storage need no
// score from each node.
func (p *Plugin) PreScore(_ context.Context, cs fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
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
func (p *Plugin) Score(_ context.Context, cs fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	s, err := readState(cs)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	if s.none {
		return 0, nil
	}
	v, _ := s.verdict(info.Node().Name)
	return v.Score(), nil
}

// ScoreExtensions implements fwk.ScorePlugin: scores span the whole scale as
// they are.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }
