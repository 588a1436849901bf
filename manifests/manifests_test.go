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

// render builds base/ as `kubectl apply -k` does, and decodes every object
// strictly: a field that Kubernetes does not know, or knows twice, fails.
func render(t *testing.T) []runtime.Object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "base")
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

func TestDriverAndClasses(t *testing.T) {
	objects := render(t)
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
func TestReferences(t *testing.T) {
	objects := render(t)
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

// need is a request that code makes, and where.
type need struct {
	by                     string
	group, resource, verbs string
	// name is set for requests that need one object only.
	name string
	// namespace is empty for requests in any namespace, or in none.
	namespace string
}

func TestAgentRights(t *testing.T) {
	const own = "berth-system"
	needs := []need{
		{by: "controller-runtime, the cache of scope.Cache", group: "", resource: "nodes", verbs: "list watch"},
		{by: "controller-runtime, the cache of scope.Cache", group: "storage.k8s.io", resource: "csinodes", verbs: "list watch"},
		{by: "controller-runtime, the cache of scope.Cache", group: "", resource: "persistentvolumes", verbs: "list watch"},
		{by: "controller-runtime, the cache of scope.Cache", group: "", resource: "persistentvolumeclaims", verbs: "list watch"},
		{by: "controller-runtime, the cache of scope.Cache", group: "storage.k8s.io", resource: "storageclasses", verbs: "list watch"},
		{by: "controller-runtime, the cache of scope.Cache", group: "storage.k8s.io", resource: "csistoragecapacities", verbs: "list watch", namespace: own},
		{by: "controller/provision, confirm and reschedule", group: "", resource: "persistentvolumeclaims", verbs: "get patch"},
		{by: "controller/provision, publish and undo", group: "", resource: "persistentvolumes", verbs: "create get"},
		{by: "controller/reclaim, finalizer and deletion", group: "", resource: "persistentvolumes", verbs: "get patch delete"},
		{by: "controller/reclaim, the live claim", group: "", resource: "persistentvolumeclaims", verbs: "get"},
		{by: "controller/expand, capacity and annotation", group: "", resource: "persistentvolumes", verbs: "patch"},
		{by: "controller/expand, annotation", group: "", resource: "persistentvolumeclaims", verbs: "patch"},
		{by: "controller/expand and nodeagent, progress", group: "", resource: "persistentvolumeclaims/status", verbs: "patch"},
		{by: "controller/capacity", group: "storage.k8s.io", resource: "csistoragecapacities", verbs: "get create update delete", namespace: own},
		{by: "controller/claimwatch, the policy", group: "admissionregistration.k8s.io", resource: "mutatingadmissionpolicies", name: volume.ClaimLabelPolicy, verbs: "get list watch"},
		{by: "controller/claimwatch, its binding", group: "admissionregistration.k8s.io", resource: "mutatingadmissionpolicybindings", name: volume.ClaimLabelPolicy, verbs: "get list watch"},
		{by: "controller/claimwatch, the backlog", group: "", resource: "persistentvolumeclaims", verbs: "list patch"},
		{by: "every controller, events", group: "events.k8s.io", resource: "events", verbs: "create patch"},
		{by: "client-go, events where events.k8s.io is refused", group: "", resource: "events", verbs: "create patch"},
		{by: "nodeagent/nodeinfo, labels and nodeid", group: "", resource: "nodes", verbs: "get patch"},
		{by: "nodeagent/nodeinfo, CSINode", group: "storage.k8s.io", resource: "csinodes", verbs: "get create update delete"},
		{by: "nodeagent, volumesInUse", group: "", resource: "nodes/status", verbs: "patch"},
		{by: "nodeagent, which volumes pods need", group: "", resource: "pods", verbs: "get list watch"},
		{by: "nodeagent, what a driver needs", group: "storage.k8s.io", resource: "csidrivers", verbs: "get list watch"},
	}
	checkNeeds(t, render(t), "berth-agent", nil, needs)
}

func TestSchedulerRights(t *testing.T) {
	needs := []need{
		{by: "BerthVolumes, binding", group: "", resource: "persistentvolumes", verbs: "get list watch update patch"},
		{by: "BerthVolumes, binding", group: "", resource: "persistentvolumeclaims", verbs: "get list watch update patch"},
		{by: "BerthVolumes, capacity ledger", group: "storage.k8s.io", resource: "csistoragecapacities", verbs: "list watch"},
		{by: "BerthVolumes, sources of claims", group: "snapshot.storage.k8s.io", resource: "volumesnapshotcontents", verbs: "list watch"},
		{by: "BerthVolumes, attach ledger", group: "storage.k8s.io", resource: "volumeattachments", verbs: "list watch"},
		{by: "BerthVolumes, attach ledger", group: "storage.k8s.io", resource: "csinodes", verbs: "list watch"},
		{by: "BerthVolumes, drivers", group: "storage.k8s.io", resource: "csidrivers", verbs: "list watch"},
		{by: "BerthVolumes, classes", group: "storage.k8s.io", resource: "storageclasses", verbs: "list watch"},
		{by: "leader election", group: "coordination.k8s.io", resource: "leases", verbs: "create", namespace: "berth-system"},
		{by: "leader election of the scheduler", group: "coordination.k8s.io", resource: "leases", name: "berth-scheduler", verbs: "get update", namespace: "berth-system"},
		{by: "controller/cluster, leader election", group: "coordination.k8s.io", resource: "leases", name: "berth-cluster", verbs: "get update", namespace: "berth-system"},
		{by: "controller/cluster, nodes", group: "", resource: "nodes", verbs: "get list watch"},
		{by: "controller/cluster, registered drivers", group: "storage.k8s.io", resource: "csinodes", verbs: "list watch"},
		{by: "controller/cluster, events", group: "events.k8s.io", resource: "events", verbs: "create patch"},
	}
	builtin := []string{"system:kube-scheduler", "system:volume-scheduler"}
	checkNeeds(t, render(t), "berth-scheduler", builtin, needs)
}

// checkNeeds reports what the account may not do of what it needs, and the
// built-in roles that it lacks.
func checkNeeds(t *testing.T, objects []runtime.Object, account string, builtin []string, needs []need) {
	t.Helper()
	everywhere, inNamespace, bound := rightsOf(objects, account)
	for _, role := range builtin {
		if !slices.Contains(bound, role) {
			t.Errorf("%s is not bound to ClusterRole %s", account, role)
		}
	}
	for _, n := range needs {
		rules := slices.Clone(everywhere)
		if n.namespace != "" {
			rules = append(rules, inNamespace[n.namespace]...)
		}
		for verb := range strings.FieldsSeq(n.verbs) {
			if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return grants(r, n, verb) }) {
				t.Errorf("%s needs %s on %s.%s for %s", account, verb, n.resource, n.group, n.by)
			}
		}
	}
}

// rightsOf collects the rules of an account: everywhere, per namespace, and the
// names of its ClusterRoles.
func rightsOf(objects []runtime.Object, account string) (everywhere []rbacv1.PolicyRule, inNamespace map[string][]rbacv1.PolicyRule, bound []string) {
	mine := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool { return s.Name == account })
	}
	for _, b := range of[*rbacv1.ClusterRoleBinding](objects) {
		if !mine(b.Subjects) {
			continue
		}
		bound = append(bound, b.RoleRef.Name)
		for _, r := range of[*rbacv1.ClusterRole](objects) {
			if r.Name == b.RoleRef.Name {
				everywhere = append(everywhere, r.Rules...)
			}
		}
	}
	inNamespace = make(map[string][]rbacv1.PolicyRule)
	for _, b := range of[*rbacv1.RoleBinding](objects) {
		if !mine(b.Subjects) {
			continue
		}
		for _, r := range of[*rbacv1.Role](objects) {
			if r.Name == b.RoleRef.Name && r.Namespace == b.Namespace {
				inNamespace[b.Namespace] = append(inNamespace[b.Namespace], r.Rules...)
			}
		}
	}
	return everywhere, inNamespace, bound
}

// grants ignores rules that are restricted to other names than the one needed.
func grants(r rbacv1.PolicyRule, n need, verb string) bool {
	named := len(r.ResourceNames) == 0 || n.name != "" && slices.Contains(r.ResourceNames, n.name)
	return named && slices.Contains(r.APIGroups, n.group) &&
		slices.Contains(r.Resources, n.resource) && slices.Contains(r.Verbs, verb)
}

// TestNoWildcards: every right is said.
func TestNoWildcards(t *testing.T) {
	check := func(name string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, s := range slices.Concat(r.APIGroups, r.Resources, r.Verbs) {
				if s == "*" {
					t.Errorf("%s grants *", name)
				}
			}
		}
	}
	objects := render(t)
	for _, r := range of[*rbacv1.ClusterRole](objects) {
		check(r.Name, r.Rules)
	}
	for _, r := range of[*rbacv1.Role](objects) {
		check(r.Name, r.Rules)
	}
}
