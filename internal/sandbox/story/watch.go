package story

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	selector  string
	example   T
}

// until watches objects until all of them together are as wanted, and returns
// them by their names. wanted says in words what is still missing; "" is enough.
func until[T runtime.Object](ctx context.Context, kind kindOf[T], wanted func(map[string]T) string) (map[string]T, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	lw := cache.NewFilteredListWatchFromClient(kind.client, kind.resource, kind.namespace, func(o *metav1.ListOptions) {
		o.LabelSelector = kind.selector
	})
	have := map[string]T{}
	missing := "nothing was seen yet"
	judge := func() bool {
		missing = wanted(have)
		return missing == ""
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
