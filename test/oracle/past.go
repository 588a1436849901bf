package oracle

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-storage/berth/volume"
)

// past puts the world as it was, has it looked at, and lets it become as it is.
// Whoever has to be told of what changes hears it from observe.
func (s *server) past(w *world, look func(), observe func(runtime.Object)) {
	for _, o := range w.objects() {
		switch o := o.(type) {
		case *storagev1.CSINode:
			if was := csiNodeOf(w.limits, o.Name); was != nil {
				s.put(was)
				continue
			}
		case *corev1.PersistentVolumeClaim:
			if node := w.gaveBack[o.Name]; node != "" {
				was := o.DeepCopy()
				metav1.SetMetaDataAnnotation(&was.ObjectMeta, volume.AnnSelectedNode, node)
				s.put(was)
				continue
			}
		}
		s.put(o)
	}
	for _, was := range w.limits {
		if csiNodeOf(w.csiNodes, was.Name) == nil {
			s.put(was)
		}
	}
	look()
	for _, was := range w.limits {
		if is := csiNodeOf(w.csiNodes, was.Name); is != nil {
			observe(s.put(is))
			continue
		}
		s.delete(was)
		observe(was)
	}
	for _, name := range slices.Sorted(maps.Keys(w.gaveBack)) {
		observe(s.put(w.claim(name)))
	}
}

// outdate lets the API have newer objects than the informers.
func (s *server) outdate(w *world) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, o := range s.objects {
		if kind, name, _ := strings.Cut(key, " "); w.stale[name] && strings.HasPrefix(kind, "persistent") {
			s.keep(o)
		}
	}
}
