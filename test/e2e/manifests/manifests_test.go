// Package manifests_test applies the shipped manifests, whole, to a real API
// server, and asks it what the label policy does.
package manifests_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-storage/berth/controller/claimwatch"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/manifests"
	"github.com/berth-storage/berth/test/e2e/rig"
	"github.com/berth-storage/berth/volume"
)

// world is a control plane and the manifests in a folder.
type world struct {
	t       *testing.T
	cluster *sandbox.Cluster
	client  kubernetes.Interface
	// The folders to apply.
	base, extender string
}

func start(t *testing.T) *world {
	t.Helper()
	cluster := rig.Start(t, sandbox.Options{})
	client, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, manifests.FS); err != nil {
		t.Fatal(err)
	}
	return &world{t: t, cluster: cluster, client: client, base: filepath.Join(copied, "base"), extender: filepath.Join(copied, "extender")}
}

// kubectl runs the sandbox's kubectl as the administrator.
func (w *world) kubectl(args ...string) string {
	w.t.Helper()
	args = append([]string{"kubectl", "--kubeconfig=" + w.cluster.Kubeconfig()}, args...)
	out, err := exec.CommandContext(w.t.Context(), filepath.Join(rig.BinDir(w.t), "berth-sandbox"), args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestManifests(t *testing.T) {
	w := start(t)
	w.kubectl("apply", "-f", filepath.Join(w.base, "namespace.yaml"))
	for _, folder := range []string{w.base, w.extender} {
		// A field that the API server does not know is an error here.
		out := w.kubectl("apply", "-k", folder, "--dry-run=server", "--validate=strict")
		if strings.Contains(strings.ToLower(out), "warning") {
			t.Errorf("the API server warns:\n%s", out)
		}
		w.kubectl("apply", "-k", folder)
	}
	t.Run("pods", w.pods)
	t.Run("sidecar's rights", w.rights)
	w.awaitPolicy(t)
	t.Run("label follows", w.labelFollows)
	t.Run("names", w.names)
	t.Run("choice", w.choice)
}

// pods: what the API server asks of pods is met, and not of their templates only.
func (w *world) pods(t *testing.T) {
	templates := map[string]corev1.PodTemplateSpec{}
	for _, name := range []string{"berth-scheduler", "berth-extender"} {
		d, err := w.client.AppsV1().Deployments(sandbox.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		templates[name] = d.Spec.Template
	}
	s, err := w.client.AppsV1().DaemonSets(sandbox.Namespace).Get(t.Context(), "berth-agent", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	templates["berth-agent"] = s.Spec.Template
	for name, template := range templates {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec}
		made, err := w.client.CoreV1().Pods(sandbox.Namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if made.Spec.Priority == nil || *made.Spec.Priority < 2_000_000_000 {
			t.Errorf("%s: priority %v is none of Kubernetes' own", name, made.Spec.Priority)
		}
	}
}

// rights: what the authorizer itself says of the account that kube-scheduler and
// berth-extender share.
func (w *world) rights(t *testing.T) {
	const leases = "coordination.k8s.io/leases"
	cases := map[string]struct {
		reason, verb, resource, name, namespace string
		denied                                  bool
	}{
		"bind":           {"the verb bind", "create", "/pods/binding", "", "default", false},
		"claims":         {"the selected node of a claim", "patch", "/persistentvolumeclaims", "", "default", false},
		"classes":        {"kube-scheduler's own plugins read them too", "watch", "storage.k8s.io/storageclasses", "", "", false},
		"follow":         {"which replica leads", "watch", leases, "berth-extender", "berth-system", false},
		"lead":           {"kube-scheduler's election", "update", leases, "berth-extender", "berth-system", false},
		"cluster":        {"the election of the cluster's work", "update", leases, "berth-cluster", "berth-system", false},
		"another's":      {"the cluster's own scheduler is none of its concern", "update", leases, "kube-controller-manager", "kube-system", true},
		"secrets":        {"neither of both reads any", "get", "/secrets", "", "berth-system", true},
		"delete volumes": {"the agent's alone", "delete", "/persistentvolumes", "", "", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			group, resource, _ := strings.Cut(tc.resource, "/")
			resource, sub, _ := strings.Cut(resource, "/")
			review, err := w.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User: "system:serviceaccount:" + sandbox.Namespace + ":berth-extender",
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Verb: tc.verb, Group: group, Resource: resource, Subresource: sub, Name: tc.name, Namespace: tc.namespace,
					},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed == tc.denied {
				t.Errorf("%s: %s on %s %s: allowed is %t", tc.reason, tc.verb, tc.resource, tc.name, review.Status.Allowed)
			}
		})
	}
}

func makeClaim(name, node string) *corev1.PersistentVolumeClaim {
	class := "berth-local"
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if node != "" {
		claim.Annotations = map[string]string{volume.AnnSelectedNode: node}
	}
	return claim
}

// create makes a claim and returns its label as the API server answers; the claim
// does not stay with dry.
func (w *world) create(t *testing.T, claim *corev1.PersistentVolumeClaim, dry bool) string {
	t.Helper()
	options := metav1.CreateOptions{}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	made, err := w.client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim, options)
	if err != nil {
		t.Fatalf("no claim may be refused: %v", err)
	}
	return made.Labels[volume.LabelNode]
}

// awaitPolicy waits until the API server follows the policy.
func (w *world) awaitPolicy(t *testing.T) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return w.create(t, makeClaim("probe", "n0"), true) == "n0", nil
	})
	if err != nil {
		t.Fatalf("the policy is not followed: %v", err)
	}
}

// labelFollows leads one claim through everything that schedulers and people do to
// the annotation and the label.
func (w *world) labelFollows(t *testing.T) {
	const selected, label = volume.AnnSelectedNode, volume.LabelNode
	if got := w.create(t, makeClaim("data", ""), false); got != "" {
		t.Errorf("a claim without a node has the label %q", got)
	}
	meta := func(kind, key string, value any) map[string]any {
		return map[string]any{"metadata": map[string]any{kind: map[string]any{key: value}}}
	}
	steps := []struct {
		reason string
		patch  map[string]any
		sub    string
		want   map[string]string
	}{
		{"a scheduler selects a node", meta("annotations", selected, "n1"), "", map[string]string{label: "n1"}},
		{"other labels are left alone", meta("labels", "app", "db"), "", map[string]string{label: "n1", "app": "db"}},
		{"it selects another", meta("annotations", selected, "n2"), "", map[string]string{label: "n2", "app": "db"}},
		{"a person changes the label", meta("labels", label, "n9"), "", map[string]string{label: "n2", "app": "db"}},
		{"a person removes the label", meta("labels", label, nil), "", map[string]string{label: "n2", "app": "db"}},
		{"the selection is taken away", meta("annotations", selected, nil), "", map[string]string{"app": "db"}},
		{"a person adds the label", meta("labels", label, "n1"), "", map[string]string{"app": "db"}},
		{"through the status", meta("annotations", selected, "n3"), "status", map[string]string{label: "n3", "app": "db"}},
		{"a value that no label can have", meta("annotations", selected, "-bad value/"), "", map[string]string{"app": "db"}},
		{"an empty one", meta("annotations", selected, ""), "", map[string]string{"app": "db"}},
	}
	for _, s := range steps {
		patch, err := json.Marshal(s.patch)
		if err != nil {
			t.Fatal(err)
		}
		var sub []string
		if s.sub != "" {
			sub = append(sub, s.sub)
		}
		got, err := w.client.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "data", types.MergePatchType, patch, metav1.PatchOptions{}, sub...)
		if err != nil {
			t.Fatalf("%s: no write may be refused: %v", s.reason, err)
		}
		if diff := cmp.Diff(s.want, got.Labels); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", s.reason, diff)
		}
	}
	forged := makeClaim("forged", "")
	forged.Labels = map[string]string{label: "n1"}
	if got := w.create(t, forged, false); got != "" {
		t.Errorf("a claim restored with its label and without its node has the label %q", got)
	}
}

// names holds the policy to volume.ClaimLabelValue.
func (w *world) names(t *testing.T) {
	names := []string{
		"n", "n1", "edge-1.example.com", "ip-10-0-0-1.eu-west-1.compute.internal", "0",
		strings.Repeat("a", 62), strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 253),
		strings.Repeat("a", 61) + ".b", strings.Repeat("a", 62) + ".b",
	}
	for i, name := range names {
		want, _ := volume.ClaimLabelValue(name)
		if got := w.create(t, makeClaim(fmt.Sprintf("name-%d", i), name), true); got != want {
			t.Errorf("node %s (%d bytes): the policy says %q, volume.ClaimLabelValue %q", name, len(name), got, want)
		}
	}
}

// choice: an agent relies on what was applied, and not on less.
func (w *world) choice(t *testing.T) {
	choose := func() claimwatch.Choice {
		t.Helper()
		choice, err := claimwatch.Choose(t.Context(), w.client.AdmissionregistrationV1(), claimwatch.Auto, "n1")
		if err != nil {
			t.Fatal(err)
		}
		return choice
	}
	if got := choose(); got.Claims != scope.LabelledClaims || got.Since.IsZero() {
		t.Errorf("with the policy: %+v", got)
	}
	w.kubectl("delete", "mutatingadmissionpolicybinding", volume.ClaimLabelPolicy)
	if got := choose(); got.Claims != scope.AllClaims {
		t.Errorf("without its binding: %+v", got)
	}
}
