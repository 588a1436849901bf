// Package sandbox runs a whole cluster on one machine: a real etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler, Berth's scheduler or
// its scheduler extender, and per node a Berth agent and a small pod runtime, each a
// process of its own.
//
// All of them are children of the process that calls Start. Whatever way that
// process ends, its children end with it; mounts, loop devices and files stay
// until Stop, or until the next Start or Remove on the same data folder, which
// begins by sweeping away what an earlier one left.
//
// The package imports no Kubernetes component: those live in the binary
// berth-sandbox (package multicall), which is run once per process.
package sandbox
