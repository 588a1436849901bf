// Package oracle holds BerthVolumes against upstream's VolumeBinding and
// NodeVolumeLimits on random clusters.
//
// Three implementations answer the same questions about the same objects:
// upstream's plugins, imported; BerthVolumes; and a model, a naive search of
// every choice, which takes a set of plugin.Differences. The model without any
// has to answer as upstream on every cluster, and with all of them as
// BerthVolumes. So whatever the two plugins disagree about is explained by a
// Difference. One fires on a cluster where it alone changes what the model
// answers; one that never fires is a fault of the generator.
//
// The extender is held against BerthVolumes, with no difference at all: through
// its handlers, each verb in JSON, it has to give every node the same verdict in the
// same words, also in a preemption, to score it alike, and to write the same when it
// binds. Where a plugin reserves for another pod, it is asked to bind one whose
// volumes nobody provides. Two things are left out, as they are no verdicts: it keeps
// what it reserved for a pod that ran out of time, which a plugin gives back; and for
// other pods it has written by then what a plugin only has in memory.
//
// Compared are PreFilter, Filter (code and sentences of each node, also in the
// dry run of a preemption), PreScore, Score, and what Reserve and PreBind write,
// conflicts included; before the question other pods may have reserved volumes,
// claims may have been given back and attach limits may have vanished. Objects
// lie in the informers' stores and no event is on its way, so that both see the
// same moment. Two tests ask what one question does not show: how long PreBind
// takes (NoPoll), and which pods an event wakes (Hints).
package oracle
