package manifests_test

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-storage/berth/volume"
)

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
	eachFolder(t, func(t *testing.T, objects []runtime.Object) {
		t.Helper()
		checkNeeds(t, objects, "berth-agent", nil, needs)
	})
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
	checkNeeds(t, render(t, base), "berth-scheduler", builtin, needs)
}

func TestExtenderRights(t *testing.T) {
	const own = "berth-system"
	needs := []need{
		{by: "scheduler/binder, binding", group: "", resource: "persistentvolumes", verbs: "get list watch update patch"},
		{by: "scheduler/binder, binding", group: "", resource: "persistentvolumeclaims", verbs: "get list watch update patch"},
		{by: "scheduler/cache, capacity ledger", group: "storage.k8s.io", resource: "csistoragecapacities", verbs: "list watch"},
		{by: "scheduler/snapshots, sources of claims", group: "snapshot.storage.k8s.io", resource: "volumesnapshotcontents", verbs: "list watch"},
		{by: "scheduler/cache, attach ledger", group: "storage.k8s.io", resource: "volumeattachments", verbs: "list watch"},
		{by: "scheduler/cache, attach ledger", group: "storage.k8s.io", resource: "csinodes", verbs: "list watch"},
		{by: "scheduler/binder, drivers", group: "storage.k8s.io", resource: "csidrivers", verbs: "list watch"},
		{by: "scheduler/cache, classes", group: "storage.k8s.io", resource: "storageclasses", verbs: "list watch"},
		{by: "scheduler/cache, nodes", group: "", resource: "nodes", verbs: "get list watch"},
		{by: "scheduler/extender, pods", group: "", resource: "pods", verbs: "get list watch"},
		{by: "scheduler/extender, the verb bind", group: "", resource: "pods/binding", verbs: "create"},
		{by: "scheduler/extender, which replica leads", group: "coordination.k8s.io", resource: "leases", name: "berth-extender", verbs: "get list watch", namespace: own},
		{by: "leader election", group: "coordination.k8s.io", resource: "leases", verbs: "create", namespace: own},
		{by: "leader election of the scheduler", group: "coordination.k8s.io", resource: "leases", name: "berth-extender", verbs: "get update", namespace: own},
		{by: "controller/cluster, leader election", group: "coordination.k8s.io", resource: "leases", name: "berth-cluster", verbs: "get update", namespace: own},
		{by: "events", group: "events.k8s.io", resource: "events", verbs: "create patch"},
	}
	builtin := []string{"system:kube-scheduler", "system:volume-scheduler"}
	checkNeeds(t, render(t, extender), "berth-extender", builtin, needs)
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
