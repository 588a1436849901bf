// Package nodeinfo writes what a CSI driver says of its node into the API: the
// node id annotation and the topology labels of the Node, and the driver's
// entry in the CSINode (kubelet, pkg/volume/csi/nodeinfomanager).
//
// Three things differ from the kubelet, on purpose. Writes carry the
// resourceVersion that they are based on, so that two writers of the node id
// annotation lose nothing. A changed node id or topology replaces the entry
// instead of being refused for ever. And the entry outlives the driver's
// registration by a grace, so that a driver that restarts does not take its
// node out of scheduling.
package nodeinfo
