package provision

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/volume"
)

// segmentsOf returns the node's labels under the topology keys that the driver
// registered there. An error passes when the driver registers or the labels
// arrive.
func segmentsOf(node *corev1.Node, csiNode *storagev1.CSINode, driver string) (volume.Topology, error) {
	for _, d := range csiNode.Spec.Drivers {
		if d.Name != driver {
			continue
		}
		segments, missing := volume.Pick(node.Labels, d.TopologyKeys)
		if len(missing) > 0 {
			return nil, fmt.Errorf("node %s lacks the topology labels %s of driver %s",
				node.Name, strings.Join(missing, ", "), driver)
		}
		return segments, nil
	}
	return nil, fmt.Errorf("driver %s is not registered on node %s", driver, node.Name)
}

// affinityOf says where a volume with this accessible topology can be reached:
// topologies are alternatives, the segments of one must all hold. nil means
// everywhere.
func affinityOf(accessible []volume.Topology) *corev1.VolumeNodeAffinity {
	var terms []corev1.NodeSelectorTerm
	for _, t := range accessible {
		if len(t) == 0 {
			continue
		}
		terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: expressions(t)})
	}
	if len(terms) == 0 {
		return nil
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
}

func expressions(t volume.Topology) []corev1.NodeSelectorRequirement {
	out := make([]corev1.NodeSelectorRequirement, 0, len(t))
	for key, value := range t {
		out = append(out, corev1.NodeSelectorRequirement{
			Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value},
		})
	}
	slices.SortFunc(out, func(a, b corev1.NodeSelectorRequirement) int { return strings.Compare(a.Key, b.Key) })
	return out
}
