package cache

import (
	"maps"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/volume"
)

// limits remembers how many volumes a driver's node could attach, for the time
// in which the driver does not say so: its CSINode entry vanishes while its pod
// restarts, and a driver that counts too early reports nothing. Without memory
// that would lift the limit. It has no lock; Cache gives it one.
type limits struct {
	grace time.Duration
	// seen: node → driver → the last limit above zero.
	seen map[string]map[string]int64
	// kept: node → driver → when the memory of a limit that vanished ends.
	kept map[string]map[string]time.Time
	// published: node → the drivers that publish a limit there; nodes counts the
	// nodes of each driver.
	published map[string][]string
	nodes     map[string]int
}

func newLimits(grace time.Duration) limits {
	return limits{grace: grace, seen: map[string]map[string]int64{}, kept: map[string]map[string]time.Time{}, published: map[string][]string{}, nodes: map[string]int{}}
}

// CountOf is the limit that a CSINode publishes for a driver; published is false
// where it has none, registered where the driver is not there at all.
func CountOf(n *storagev1.CSINode, driver string) (count int64, published, registered bool) {
	if n == nil {
		return 0, false, false
	}
	for i := range n.Spec.Drivers {
		d := &n.Spec.Drivers[i]
		if d.Name != driver {
			continue
		}
		if d.Allocatable == nil || d.Allocatable.Count == nil {
			return 0, false, true
		}
		return int64(*d.Allocatable.Count), true, true
	}
	return 0, false, false
}

// set takes a node's CSINode, nil where there is none.
func (l *limits) set(node string, n *storagev1.CSINode, now time.Time) {
	l.publish(node, n)
	for driver := range l.seen[node] {
		if count, _, _ := CountOf(n, driver); count > 0 {
			continue
		}
		if _, running := l.kept[node][driver]; !running && l.grace > 0 {
			if l.kept[node] == nil {
				l.kept[node] = map[string]time.Time{}
			}
			l.kept[node][driver] = now.Add(l.grace)
		}
	}
	if n == nil {
		return
	}
	for i := range n.Spec.Drivers {
		driver := n.Spec.Drivers[i].Name
		if count, _, _ := CountOf(n, driver); count > 0 {
			if l.seen[node] == nil {
				l.seen[node] = map[string]int64{}
			}
			l.seen[node][driver] = count
			l.drop(node, driver)
		}
	}
}

// publish counts who publishes a limit.
func (l *limits) publish(node string, n *storagev1.CSINode) {
	for _, driver := range l.published[node] {
		if l.nodes[driver]--; l.nodes[driver] == 0 {
			delete(l.nodes, driver)
		}
	}
	delete(l.published, node)
	if n == nil {
		return
	}
	for i := range n.Spec.Drivers {
		if d := &n.Spec.Drivers[i]; d.Allocatable != nil && d.Allocatable.Count != nil {
			l.published[node] = append(l.published[node], d.Name)
			l.nodes[d.Name]++
		}
	}
}

// limits reports whether the driver has a limit, or had one lately, on any node.
func (l *limits) limits(driver string) bool {
	if l.nodes[driver] > 0 {
		return true
	}
	for _, drivers := range l.kept {
		if _, ok := drivers[driver]; ok {
			return true
		}
	}
	return false
}

func (l *limits) drop(node, driver string) {
	delete(l.kept[node], driver)
	if len(l.kept[node]) == 0 {
		delete(l.kept, node)
	}
}

// forget drops all memory of a node that is gone.
func (l *limits) forget(node string) {
	delete(l.seen, node)
	delete(l.kept, node)
}

// Limited reports whether any of the volumes counts against an attach limit on
// some node, as far as the informers know.
func (c *Cache) Limited(volumes []volume.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(volumes, func(k volume.Key) bool { return c.limits.limits(k.Driver) })
}

// next is when the first memory ends, zero for none.
func (l *limits) next() time.Time {
	var next time.Time
	for _, drivers := range l.kept {
		for _, at := range drivers {
			if next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next
}

// expire ends what was remembered long enough, and reports whether any was.
func (l *limits) expire(now time.Time) bool {
	ended := false
	for node, drivers := range maps.Clone(l.kept) {
		for driver, at := range maps.Clone(drivers) {
			if at.After(now) {
				continue
			}
			ended = true
			delete(l.seen[node], driver)
			if len(l.seen[node]) == 0 {
				delete(l.seen, node)
			}
			l.drop(node, driver)
		}
	}
	return ended
}

// shared is what a decision reads: node → driver → limit, replaced on change.
func (l *limits) shared() map[string]map[string]int64 {
	out := make(map[string]map[string]int64, len(l.kept))
	for node, drivers := range l.kept {
		out[node] = make(map[string]int64, len(drivers))
		for driver := range drivers {
			out[node][driver] = l.seen[node][driver]
		}
	}
	return out
}

// Remembered is the limit that a driver had on a node before it vanished, and
// false where nothing vanished lately.
func (c *Cache) Remembered(node, driver string) (int64, bool) {
	kept := *c.kept.Load()
	if len(kept) == 0 {
		return 0, false
	}
	count, ok := kept[node][driver]
	return count, ok
}

// syncCSINode needs mu.
func (c *Cache) syncCSINode(node string) {
	c.limits.set(node, get[storagev1.CSINode](c.stores.csiNodes, node), c.clock.Now())
	c.shareLimits()
}

// shareLimits needs mu.
func (c *Cache) shareLimits() {
	if len(c.limits.kept) == 0 && len(*c.kept.Load()) == 0 {
		return
	}
	kept := c.limits.shared()
	c.kept.Store(&kept)
}
