// Package binding decides where a pod's volumes can live: given the pod's
// claims, one node and a snapshot of volumes and capacity, it answers with the
// PersistentVolumes to bind, the claims to provision there, or the reasons why
// the node is refused.
//
// It is pure: no client, clock or logger, and no lock but around the texts of
// refusals, which are made once. scheduler/cache gathers what it reads, and
// scheduler/binder performs the BindPlan that it returns. All claims of a pod are
// judged together: two claims never get one volume, and what a pod's claims take
// from one pool is summed over classes.
//
// Refusals carry a detail that is the same text for every node that fails for
// one cause, because kube-scheduler groups nodes by equal text. A detail
// therefore says what was asked, never what one node has left; where a figure
// about free space helps, it is the most that any pool of the class has free,
// which is one number for the whole cluster. The only node that a detail may
// name is the one that a claim was selected for, which is the same one for all.
//
// Where it answers otherwise than kube-scheduler's plugins/volumebinding is told
// in the package doc of scheduler/plugin.
package binding
