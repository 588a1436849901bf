package cache

import (
	"maps"
	"time"

	"github.com/berth-storage/berth/scheduler/binding"
)

// refusals remembers which nodes lately gave a claim back that was selected for
// them: their driver has no room although its published capacity says so. Such
// a node is the last choice for claims of that class and size until a capacity
// object of the class changes there, or a grace ends. It has no lock; Cache
// gives it one.
type refusals struct {
	grace time.Duration
	// byClass: class → node → what was refused.
	byClass map[string]map[string]refused
}

type refused struct {
	// bytes is the smallest size that was refused.
	bytes int64
	// objects that the node reached: key → version.
	objects map[string]string
	until   time.Time
}

func newRefusals(grace time.Duration) refusals {
	return refusals{grace: grace, byClass: map[string]map[string]refused{}}
}

func (r *refusals) add(class, node string, bytes int64, objects map[string]string, now time.Time) {
	if r.byClass[class] == nil {
		r.byClass[class] = map[string]refused{}
	}
	if old, again := r.byClass[class][node]; again {
		bytes = min(bytes, old.bytes)
	}
	r.byClass[class][node] = refused{bytes: bytes, objects: objects, until: now.Add(r.grace)}
}

func (r *refusals) drop(class, node string) {
	delete(r.byClass[class], node)
	if len(r.byClass[class]) == 0 {
		delete(r.byClass, class)
	}
}

// changed ends the refusals that a capacity object explains: one that they did
// not know, or that has another version now. version is empty for one deleted.
func (r *refusals) changed(class, key, version string, reaches func(node string) bool) {
	for node, what := range maps.Clone(r.byClass[class]) {
		old, known := what.objects[key]
		if known && old != version || !known && reaches(node) {
			r.drop(class, node)
		}
	}
}

// of lists the nodes that refused that much of a class, nil for none.
func (r *refusals) of(class string, bytes int64) map[string]struct{} {
	var out map[string]struct{}
	for node, what := range r.byClass[class] {
		if bytes < what.bytes {
			continue
		}
		if out == nil {
			out = map[string]struct{}{}
		}
		out[node] = struct{}{}
	}
	return out
}

// next is when the first refusal ends, zero for none.
func (r *refusals) next() time.Time {
	var next time.Time
	for _, nodes := range r.byClass {
		for _, what := range nodes {
			if next.IsZero() || what.until.Before(next) {
				next = what.until
			}
		}
	}
	return next
}

func (r *refusals) expire(now time.Time) bool {
	ended := false
	for class, nodes := range maps.Clone(r.byClass) {
		for node, what := range maps.Clone(nodes) {
			if !what.until.After(now) {
				ended = true
				r.drop(class, node)
			}
		}
	}
	return ended
}

// givenBack notes a refusal by the node that a claim was selected for. It needs
// mu.
func (c *Cache) givenBack(f claimFacts, node string) {
	labels, known := c.ledger.nodes[node]
	if !known {
		// The node is gone, and that is why.
		return
	}
	here := binding.Node{Name: node, Labels: labels}
	objects := map[string]string{}
	for key := range c.ledger.ofClass[f.class] {
		if o := c.ledger.objects[key]; o.place.Matches(&here) {
			objects[key] = o.version
		}
	}
	c.refusals.add(f.class, node, f.bytes, objects, c.clock.Now())
}

// capacityChanged needs mu.
func (c *Cache) capacityChanged(class, key, version string, p *place) {
	c.refusals.changed(class, key, version, func(node string) bool {
		return p.Matches(&binding.Node{Name: node, Labels: c.ledger.nodes[node]})
	})
}
