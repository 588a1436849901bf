// Package podruntime runs the pods of one node of the sandbox: it stands where
// a kubelet and its container engine stand, and does only what volumes need.
//
// A pod's containers are processes on a throw-away copy of the machine's root
// filesystem (package host/container); images are ignored. CSI volumes come from
// the node agent over its local API (nodeagent/podvolumes); emptyDir, configMap,
// secret, downwardAPI and projected volumes are plain files, written once when
// the pod starts; other kinds are refused with an event.
//
// Not done: probes and hooks (ready means running), sidecar init containers,
// resource limits, networks (a pod has the machine's), exec and attach.
//
// One goroutine per pod (worker) leads it through its life; what it does next
// depends on the pod's object and on its own processes alone, so that a runtime
// that was killed is followed by one that finds its way.
package podruntime
