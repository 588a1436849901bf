package nodeinfo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-storage/berth/volume"
)

// Labels follows chosen labels of one Node, the ones that a driver reports as
// its topology. A cloud provider or an operator may set them after the agent
// has started.
type Labels struct {
	node     string
	keys     []string
	informer cache.SharedIndexInformer

	mu sync.Mutex
	// now are the chosen labels that the Node has. Guarded by mu.
	now volume.Topology
	// missing are the chosen labels that it lacks. Guarded by mu.
	missing []string
	// told is what Wait returned last. Guarded by mu.
	told volume.Topology
	// turned is closed and replaced whenever now changes. Guarded by mu.
	turned chan struct{}

	// changed has room for one signal: told is no longer true.
	changed chan struct{}
}

// NewLabels makes a follower of the labels under keys of the named Node. Run
// makes it work.
func NewLabels(client kubernetes.Interface, node string, keys []string) (*Labels, error) {
	own := fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.ParseSelectorOrDie(own))
	return newLabels(lw, node, keys)
}

func newLabels(lw cache.ListerWatcher, node string, keys []string) (*Labels, error) {
	l := &Labels{
		node: node, keys: keys, missing: keys,
		informer: cache.NewSharedIndexInformer(lw, &corev1.Node{}, 0, nil),
		turned:   make(chan struct{}), changed: make(chan struct{}, 1),
	}
	_, err := l.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { l.see(obj) },
		UpdateFunc: func(_, obj any) { l.see(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("following the labels of node %s: %w", node, err)
	}
	return l, nil
}

// Run follows the Node until ctx ends.
func (l *Labels) Run(ctx context.Context) { l.informer.RunWithContext(ctx) }

// see takes in a state of the Node. A Node that is deleted keeps what it had:
// its volumes are still where they are.
func (l *Labels) see(obj any) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now, missing := volume.Pick(node.Labels, l.keys)
	if maps.Equal(now, l.now) && len(missing) == len(l.missing) {
		return
	}
	l.now, l.missing = now, missing
	close(l.turned)
	l.turned = make(chan struct{})
	if l.told != nil && !maps.Equal(l.told, now) {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

// Wait returns the labels as soon as the Node has them all. The error at the
// end of ctx names those that it lacks.
func (l *Labels) Wait(ctx context.Context) (map[string]string, error) {
	for {
		l.mu.Lock()
		now, missing, turned := l.now, l.missing, l.turned
		if len(missing) == 0 {
			l.told = now
			l.mu.Unlock()
			return maps.Clone(now), nil
		}
		l.mu.Unlock()
		select {
		case <-turned:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("node %s lacks the label(s) %s; set them, or take them out of --topology-labels",
				l.node, strings.Join(missing, ", ")), ctx.Err())
		}
	}
}

// Changed signals that the labels are no longer those that Wait returned last,
// so that the driver should be registered anew.
func (l *Labels) Changed() <-chan struct{} { return l.changed }
