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
// Compared are PreFilter, Filter (code and sentences of each node, also in the
// dry run of a preemption), PreScore, Score, and what Reserve and PreBind write,
// conflicts included; before the question other pods may have reserved volumes,
// claims may have been given back and attach limits may have vanished. Objects
// lie in the informers' stores and no event is on its way, so that both see the
// same moment. Two tests ask what one question does not show: how long PreBind
// takes (NoPoll), and which pods an event wakes (Hints).
package oracle
