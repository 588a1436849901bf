package story

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

// nodesRegister: the driver registered on every node, and what it said of the
// node stands in the API.
func (t *teller) nodesRegister(ctx context.Context) error {
	want := t.cluster.Nodes()
	nodes, err := until(ctx, t.nodeKind(), func(have map[string]*corev1.Node) string {
		for _, n := range want {
			if have[n.Name] == nil || have[n.Name].Labels[volume.TopologyNodeKey] != n.Name {
				return fmt.Sprintf("%s has no label %s=%s", n.Name, volume.TopologyNodeKey, n.Name)
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	csiNodes, err := until(ctx, t.csiNodeKind(), func(have map[string]*storagev1.CSINode) string {
		for _, n := range want {
			if driverOf(have[n.Name]) == nil {
				return fmt.Sprintf("%s has no driver %s", n.Name, volume.DriverName)
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	zones := map[string]bool{}
	for _, n := range want {
		zones[n.Zone] = true
		if err := t.checkNodeObjects(n, nodes[n.Name], driverOf(csiNodes[n.Name])); err != nil {
			return err
		}
	}
	if len(zones) != 2 {
		return fmt.Errorf("the nodes lie in %d zones, want 2", len(zones))
	}
	return t.capacityIsPublished(ctx)
}

// checkNodeObjects holds what the API says of a node against what the node is.
func (t *teller) checkNodeObjects(n sandbox.Node, object *corev1.Node, driver *storagev1.CSINodeDriver) error {
	if got := object.Labels[volume.LabelZone]; got != n.Zone {
		return fmt.Errorf("node %s has zone %q, want %s", n.Name, got, n.Zone)
	}
	if !slices.Contains(driver.TopologyKeys, volume.TopologyNodeKey) {
		return fmt.Errorf("CSINode %s: topologyKeys %v lack %s", n.Name, driver.TopologyKeys, volume.TopologyNodeKey)
	}
	if err := t.checkMachine(n); err != nil {
		return err
	}
	t.say("%s: %s=%s, %s=%s", n.Name, volume.LabelZone, n.Zone, volume.TopologyNodeKey, object.Labels[volume.TopologyNodeKey])
	t.say("%s: CSINode lists %s, node id %q, topology keys %s", n.Name, driver.Name, driver.NodeID, strings.Join(driver.TopologyKeys, ", "))
	return nil
}

func driverOf(node *storagev1.CSINode) *storagev1.CSINodeDriver {
	if node == nil {
		return nil
	}
	for i := range node.Spec.Drivers {
		if node.Spec.Drivers[i].Name == volume.DriverName {
			return &node.Spec.Drivers[i]
		}
	}
	return nil
}

// checkMachine holds the node's registration against the machine: the driver's
// socket is there, and the pool is a mounted filesystem.
func (t *teller) checkMachine(n sandbox.Node) error {
	info, err := os.Stat(n.DriverSocket())
	if err != nil {
		return fmt.Errorf("node %s: looking for the driver's socket: %w", n.Name, err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("node %s: %s is no socket", n.Name, n.DriverSocket())
	}
	mounts, err := t.machine.MountsUnder(n.Pool())
	if err != nil {
		return err
	}
	if len(mounts) != 1 || mounts[0].Target != n.Pool() {
		return fmt.Errorf("node %s: the pool %s is not one mount: %v", n.Name, n.Pool(), mounts)
	}
	return nil
}

// capacityIsPublished: each node says how much room it has.
func (t *teller) capacityIsPublished(ctx context.Context) error {
	objects, err := until(ctx, t.capacityKind(), func(have map[string]*storagev1.CSIStorageCapacity) string {
		for _, n := range t.cluster.Nodes() {
			if roomOf(have, classExt4)[n.Name] == 0 {
				return fmt.Sprintf("%s publishes no capacity for class %s", n.Name, classExt4)
			}
			if wantPods()[n.Name] > 0 && roomOf(have, class)[n.Name] == 0 {
				return fmt.Sprintf("%s publishes no capacity for class %s", n.Name, class)
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	t.roomBefore = roomOf(objects, classExt4)
	room := roomOf(objects, class)
	for _, n := range t.cluster.Nodes() {
		count, counted := wantPods()[n.Name]
		if !counted {
			continue
		}
		// The cast is chosen so that room decides; a pool that holds more or
		// fewer claims than it should would make the next step prove nothing.
		if got := int(room[n.Name] / claimSize); got != count {
			return fmt.Errorf("node %s has room for %d claims of %s (%s), want %d", n.Name, got, volume.FormatBytes(claimSize), volume.FormatBytes(room[n.Name]), count)
		}
		t.say("%s: CSIStorageCapacity says %s for class %s: room for %d of the claims to come", n.Name, volume.FormatBytes(room[n.Name]), class, count)
	}
	most := slices.MaxFunc(slices.Collect(maps.Keys(t.roomBefore)), func(a, b string) int { return cmp.Compare(t.roomBefore[a], t.roomBefore[b]) })
	if most != otherNode {
		return fmt.Errorf("node %s has the most room, want %s: %v", most, otherNode, t.roomBefore)
	}
	return nil
}

// roomOf is the capacity that each node publishes for a class.
func roomOf(objects map[string]*storagev1.CSIStorageCapacity, class string) map[string]int64 {
	room := map[string]int64{}
	for _, o := range objects {
		if o.StorageClassName != class || o.Capacity == nil || o.NodeTopology == nil {
			continue
		}
		if node := o.NodeTopology.MatchLabels[volume.TopologyNodeKey]; node != "" {
			room[node] = o.Capacity.Value()
		}
	}
	return room
}

// roomWhen is the capacity that each node publishes for a class, once it is as
// wanted.
func (t *teller) roomWhen(ctx context.Context, class string, wanted func(map[string]int64) string) (map[string]int64, error) {
	objects, err := until(ctx, t.capacityKind(), func(have map[string]*storagev1.CSIStorageCapacity) string {
		return wanted(roomOf(have, class))
	})
	return roomOf(objects, class), err
}

// room is the capacity that each node publishes for a class now.
func (t *teller) room(ctx context.Context, class string) (map[string]int64, error) {
	return t.roomWhen(ctx, class, func(map[string]int64) string { return "" })
}
