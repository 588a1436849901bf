// Package desired says which volumes this node should hold, and how its pods
// use them: from the pods bound to the node, their claims, PersistentVolumes
// and CSIDrivers.
//
// Everything is watched, nothing is polled: pods by spec.nodeName, the Node and
// each claim and PersistentVolume in use by name, so that the cost follows the
// node's own pods and not the size of the cluster. Each change makes a new
// Snapshot, which is immutable.
//
// A volume that cannot be used has a reason, per pod. A pod that ran into one is
// missing from the Wanted volume; that is no evidence against what it holds
// already (package plan).
package desired
