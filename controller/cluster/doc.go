// Package cluster does what a cluster needs done once, under one Lease:
//
//	release  take back the selection of a node that does not exist any more
//	assign   choose a node for a claim of a class with immediate binding
//	placed   bind the delayed claims of pods that were put on a node by hand
//
// The first two write one annotation, volume.kubernetes.io/selected-node; what follows
// from it is the work of the node's agent and of the scheduler. In other
// drivers every node's provisioner competes for each immediate claim; here one
// leader decides, so that claims spread and no two nodes collide.
//
// A round looks at the whole cluster, decides (eligible, room and place are
// pure), then writes. Every write carries the version of the claim that was
// decided on. What was written and is not in the cache yet is remembered, so
// that no round promises the same bytes twice; see memory. A claim that a
// scheduler has reserved and not yet written is not seen: there the driver
// answers ResourceExhausted and the claim comes back.
package cluster
