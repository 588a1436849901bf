package main

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// kinds are those that the controllers read and write, which are the same in
// every version of Kubernetes. With them written down, an agent starts while the
// API server is away, which it would else ask for them: it is then not ready, and
// goes on as soon as there is one.
func kinds(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range []struct {
		in    schema.GroupVersion
		scope meta.RESTScope
		names []string
	}{
		{corev1.SchemeGroupVersion, meta.RESTScopeRoot, []string{"Node", "PersistentVolume"}},
		{corev1.SchemeGroupVersion, meta.RESTScopeNamespace, []string{"PersistentVolumeClaim", "Pod", "Secret"}},
		{storagev1.SchemeGroupVersion, meta.RESTScopeRoot, []string{"StorageClass", "CSINode", "CSIDriver"}},
		{storagev1.SchemeGroupVersion, meta.RESTScopeNamespace, []string{"CSIStorageCapacity"}},
	} {
		for _, name := range k.names {
			// A list is asked about by its own name.
			mapper.Add(k.in.WithKind(name), k.scope)
			mapper.Add(k.in.WithKind(name+"List"), k.scope)
		}
	}
	return mapper, nil
}
