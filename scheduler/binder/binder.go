// Package binder judges nodes for a pod's volumes, plans what is to become of
// them on the one that was chosen, and carries the plan out: what kube-scheduler
// calls FindPodVolumes, AssumePodVolumes and BindPodVolumes. It asks
// scheduler/cache for the state and scheduler/binding for the verdict.
//
// Two adapters stand on it: scheduler/plugin in a kube-scheduler, and
// scheduler/extender beside one. Neither the scheduler framework nor HTTP is
// known here.
package binder

import (
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
)

// Nodes is what only the adapter can tell of a node: as its scheduler sees it in
// this cycle.
type Nodes interface {
	// CSINode is nil where the node has none.
	CSINode(node string) (*storagev1.CSINode, error)
	// Informed reports whether CSINode is what the informer has; a cluster
	// autoscaler's is what it simulates.
	Informed() bool
	// Tenants are the node's pods at the beginning of the cycle; false where they
	// are not known.
	Tenants(node string) (cache.Tenants, bool)
}

// Options are what a Binder stands on.
type Options struct {
	Client kubernetes.Interface
	Cache  *cache.Cache
	Nodes  Nodes
	// Shape gives a node's score.
	Shape binding.Shape
	Clock clock.WithTicker
	// Events may be nil: nobody is told then that a pod waits.
	Events events.EventRecorder
}

// Binder is safe for concurrent use.
type Binder struct {
	client kubernetes.Interface
	cache  *cache.Cache
	nodes  Nodes
	shape  binding.Shape
	clock  clock.WithTicker
	events events.EventRecorder
	// judges are *Judge that nobody uses.
	judges sync.Pool
}

// New makes a Binder.
func New(o Options) *Binder {
	b := &Binder{client: o.Client, cache: o.Cache, nodes: o.Nodes, shape: o.Shape, clock: o.Clock, events: o.Events}
	b.judges.New = func() any { return &Judge{binder: b} }
	return b
}
