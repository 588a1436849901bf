// Package extender makes Berth's decisions for a stock kube-scheduler, over the
// extender API of k8s.io/kube-scheduler/extender/v1. It is an adapter:
// scheduler/binder judges, plans and binds; here are the verbs, and what the
// service knows that a plugin would be told by its scheduler.
//
// The flow of one pod, by verb:
//
//	filter      a verdict for each node (no side effect)
//	prioritize  the node whose storage stays emptiest (no side effect)
//	preempt     of the nodes that evictions would free, those that then take the
//	            pod's volumes (no side effect)
//	bind        judges the chosen node again and promises it the plan, both at
//	            once; writes the plan, waits for it within a budget, and binds the pod
//
// An extender is told nothing between filter and bind, and nothing after a bind
// that failed. So bind is where space is reserved, and a promise ends by what the
// API says: see promises.
//
// What kube-scheduler does with an extender sets its limits: a node that it
// refuses for an attach limit is not preempted on for that alone, and a pod that it
// refuses is tried again at any event.
package extender
