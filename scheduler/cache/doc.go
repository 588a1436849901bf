// Package cache holds what the scheduler knows of volumes between decisions:
// informers in, an immutable binding.View per cycle out, and the overlay of
// what was decided but is not yet in the API.
//
// Everything is level-based. An event only names an object; the object itself
// is read from the informer's store under the cache's lock. A store is never
// older than the events that it sent, so events of different kinds, or the same
// event seen twice, may arrive in any order and the state comes out the same.
// That also lets a queueing hint bring the cache up to date (Observe…) before
// it wakes a pod: a pod is never retried against the state that refused it.
//
// The ledger is the one place that knows holds: bytes promised to a claim and
// not yet inside a published capacity. It is a function of claims, volumes,
// capacity objects and reservations, so that a restart rebuilds it from the API.
//
// A pass over the nodes compares numbers: the atlas numbers the label values that
// nodes and places have, each index has a page for each number, and the
// address of the informer's own Node says which numbers a node has.
//
// What a snapshot shares: the trees of its indexes are copied on write, the
// values in them are replaced and never changed.
package cache
