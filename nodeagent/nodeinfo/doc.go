// Package nodeinfo writes what a CSI driver says of its node into the API: the
// node id annotation and the topology labels of the Node, and the driver's
// entry in the CSINode (kubelet, pkg/volume/csi/nodeinfomanager).
//
// Four things differ from the kubelet, on purpose. Writes carry the
// resourceVersion that they are based on, so that two writers of the node id
// annotation lose nothing. A changed node id or topology replaces the entry
// instead of being refused for ever. And the entry outlives the driver's
// registration by a grace, so that a driver that restarts does not take its
// node out of scheduling. And both objects are watched: what a driver said is
// written again when somebody deletes or replaces the Node or CSINode, or takes
// out a label, a node id or an entry. Only a label that says another thing than
// the driver is left alone: that is told in an event, nothing of the driver is
// written until the two agree, and what is there of it stays.
package nodeinfo
