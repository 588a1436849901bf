package manifests_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/berth-storage/berth/volume"
)

// The folders to apply: each whole, the extender with base in it.
const (
	base     = "base"
	extender = "extender"
)

// eachFolder runs the check on each of them.
func eachFolder(t *testing.T, check func(t *testing.T, objects []runtime.Object)) {
	t.Helper()
	for _, folder := range []string{base, extender} {
		t.Run(folder, func(t *testing.T) { check(t, render(t, folder)) })
	}
}

// render builds a folder as `kubectl apply -k` does, and decodes every object
// strictly: a field that Kubernetes does not know, or knows twice, fails.
func render(t *testing.T, folder string) []runtime.Object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var objects []runtime.Object
	for _, r := range resources.Resources() {
		content, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(content, nil, nil)
		if err != nil {
			t.Fatalf("%s %s: %v", r.GetKind(), r.GetName(), err)
		}
		objects = append(objects, object)
	}
	return objects
}

func of[T runtime.Object](objects []runtime.Object) []T {
	var out []T
	for _, o := range objects {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

func TestDriverAndClasses(t *testing.T) { eachFolder(t, checkDriverAndClasses) }

func checkDriverAndClasses(t *testing.T, objects []runtime.Object) {
	t.Helper()
	drivers := of[*storagev1.CSIDriver](objects)
	if len(drivers) != 1 || drivers[0].Name != volume.DriverName {
		t.Fatalf("want one CSIDriver %s, got %v", volume.DriverName, drivers)
	}
	if spec := drivers[0].Spec; *spec.AttachRequired || !*spec.StorageCapacity {
		t.Errorf("a local driver is not attached and publishes capacity: %+v", spec)
	}
	classes := of[*storagev1.StorageClass](objects)
	if len(classes) == 0 {
		t.Fatal("no StorageClass")
	}
	for _, c := range classes {
		binding := storagev1.VolumeBindingWaitForFirstConsumer
		if c.Name == "berth-immediate" {
			binding = storagev1.VolumeBindingImmediate
		}
		if c.Provisioner != volume.DriverName || *c.VolumeBindingMode != binding || !*c.AllowVolumeExpansion {
			t.Errorf("class %s: provisioner %s, binding %s", c.Name, c.Provisioner, *c.VolumeBindingMode)
		}
		for key := range c.Parameters {
			known := key == volume.ParameterFSType || key == volume.ParameterPool
			if !known {
				t.Errorf("class %s: parameter %s is none that the driver or the provisioner knows", c.Name, key)
			}
		}
	}
}

// TestReferences holds bindings, roles, accounts and namespaces together.
func TestReferences(t *testing.T) { eachFolder(t, checkReferences) }

func checkReferences(t *testing.T, objects []runtime.Object) {
	t.Helper()
	names := make(map[string]bool)
	for _, n := range of[*corev1.Namespace](objects) {
		names["namespace/"+n.Name] = true
	}
	for _, a := range of[*corev1.ServiceAccount](objects) {
		names["account/"+a.Namespace+"/"+a.Name] = true
		if !names["namespace/"+a.Namespace] {
			t.Errorf("account %s is in namespace %s, which is not made", a.Name, a.Namespace)
		}
	}
	for _, r := range of[*rbacv1.ClusterRole](objects) {
		names["ClusterRole/"+r.Name] = true
	}
	for _, r := range of[*rbacv1.Role](objects) {
		names["Role/"+r.Namespace+"/"+r.Name] = true
	}
	check := func(binding, role string, subjects []rbacv1.Subject) {
		builtin := strings.HasPrefix(role, "ClusterRole/system:") || strings.HasPrefix(role, "Role/kube-system/")
		if !builtin && !names[role] {
			t.Errorf("binding %s: %s is not made", binding, role)
		}
		for _, s := range subjects {
			if s.Kind != rbacv1.ServiceAccountKind || !names["account/"+s.Namespace+"/"+s.Name] {
				t.Errorf("binding %s: subject %s %s/%s is not made", binding, s.Kind, s.Namespace, s.Name)
			}
		}
	}
	for _, b := range of[*rbacv1.ClusterRoleBinding](objects) {
		check(b.Name, "ClusterRole/"+b.RoleRef.Name, b.Subjects)
	}
	for _, b := range of[*rbacv1.RoleBinding](objects) {
		role := b.RoleRef.Kind + "/" + b.RoleRef.Name
		if b.RoleRef.Kind == "Role" {
			role = "Role/" + b.Namespace + "/" + b.RoleRef.Name
		}
		check(b.Name, role, b.Subjects)
	}
}

// TestNoWildcards: every right is said.
func TestNoWildcards(t *testing.T) { eachFolder(t, checkNoWildcards) }

func checkNoWildcards(t *testing.T, objects []runtime.Object) {
	t.Helper()
	check := func(name string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, s := range slices.Concat(r.APIGroups, r.Resources, r.Verbs) {
				if s == "*" {
					t.Errorf("%s grants *", name)
				}
			}
		}
	}
	for _, r := range of[*rbacv1.ClusterRole](objects) {
		check(r.Name, r.Rules)
	}
	for _, r := range of[*rbacv1.Role](objects) {
		check(r.Name, r.Rules)
	}
}
