package story

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// kindOf is a kind of objects to watch.
type kindOf[T runtime.Object] struct {
	client    rest.Interface
	resource  string
	namespace string
	example   T
	// wait is told what is waited for.
	wait func(what string)
}

// until watches objects until all of them together are as wanted, and returns
// them by their names. wanted says in words what is still missing; "" is enough.
func until[T runtime.Object](ctx context.Context, kind kindOf[T], wanted func(map[string]T) string) (map[string]T, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	lw := cache.NewListWatchFromClient(kind.client, kind.resource, kind.namespace, fields.Everything())
	have := map[string]T{}
	missing := "nothing was seen yet"
	judge := func() bool {
		missing = wanted(have)
		if missing == "" {
			return true
		}
		kind.wait(fmt.Sprintf("waiting for %s: %s", kind.resource, missing))
		return false
	}
	first := func(store cache.Store) (bool, error) {
		for _, o := range store.List() {
			if err := put(have, o); err != nil {
				return false, err
			}
		}
		return judge(), nil
	}
	_, err := watchtools.UntilWithSync(ctx, lw, kind.example, first, func(e watch.Event) (bool, error) {
		if e.Type == watch.Deleted {
			accessor, err := meta.Accessor(e.Object)
			if err != nil {
				return false, err
			}
			delete(have, accessor.GetName())
		} else if err := put(have, e.Object); err != nil {
			return false, err
		}
		return judge(), nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for %s: %s (%w)", kind.resource, missing, err)
	}
	return have, nil
}

func put[T runtime.Object](have map[string]T, object any) error {
	typed, ok := object.(T)
	if !ok {
		return fmt.Errorf("the watch sent a %T", object)
	}
	accessor, err := meta.Accessor(typed)
	if err != nil {
		return err
	}
	have[accessor.GetName()] = typed
	return nil
}

// untilReady waits until the named pods run and are ready, none of them on its
// way out, and returns them.
func (t *teller) untilReady(ctx context.Context, names ...string) (map[string]*corev1.Pod, error) {
	have, err := until(ctx, t.podKind(), func(have map[string]*corev1.Pod) string { return notReady(have, names) })
	if err != nil {
		return nil, err
	}
	pods := make(map[string]*corev1.Pod, len(names))
	for _, n := range names {
		pods[n] = have[n]
	}
	return pods, nil
}

// notReady says which of the named pods are not ready, "" when all are.
func notReady(have map[string]*corev1.Pod, names []string) string {
	var missing []string
	for _, name := range names {
		switch p := have[name]; {
		case p == nil:
			missing = append(missing, name+" does not exist")
		case p.DeletionTimestamp != nil:
			missing = append(missing, name+" is being deleted")
		case !ready(p):
			missing = append(missing, fmt.Sprintf("%s is %s on node %q", name, p.Status.Phase, p.Spec.NodeName))
		}
	}
	switch n := len(missing); n {
	case 0:
		return ""
	case 1:
		return missing[0]
	default:
		return fmt.Sprintf("%s, and %d more", missing[0], n-1)
	}
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// gone wants the named objects away.
func gone[T any](names ...string) func(map[string]T) string {
	return func(have map[string]T) string {
		for _, n := range names {
			if _, there := have[n]; there {
				return n + " is still there"
			}
		}
		return ""
	}
}

// none wants every object away.
func none[T any](have map[string]T) string {
	if len(have) == 0 {
		return ""
	}
	return fmt.Sprintf("%d are still there, such as %s", len(have), slices.Min(slices.Collect(maps.Keys(have))))
}
