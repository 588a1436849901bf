package claimwatch

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// day is when the policy was made; its binding came an hour later.
func day() metav1.Time { return metav1.NewTime(time.Unix(1_800_000_000, 0)) }

// shipped is the policy and its binding as an API server returns them.
func shipped() (*admissionregistrationv1.MutatingAdmissionPolicy, *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: volume.ClaimLabelPolicy, CreationTimestamp: day()},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{MatchConstraints: &admissionregistrationv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{}},
		}},
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: volume.ClaimLabelPolicy, CreationTimestamp: metav1.NewTime(day().Add(time.Hour))},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: volume.ClaimLabelPolicy},
	}
	return policy, binding
}

func TestChoose(t *testing.T) {
	some := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	cases := map[string]struct {
		reason  string
		mode    Mode
		node    string
		change  func(*admissionregistrationv1.MutatingAdmissionPolicy, *admissionregistrationv1.MutatingAdmissionPolicyBinding)
		without string // kind that does not exist
		want    scope.Claims
	}{
		"shipped":    {reason: "the policy as it is shipped", want: scope.LabelledClaims},
		"asked all":  {reason: "the user's word", mode: All, want: scope.AllClaims},
		"asked":      {reason: "the user's word, policy or not", mode: Labelled, without: "policy", want: scope.LabelledClaims},
		"longest":    {reason: "63 bytes fit", node: strings.Repeat("n", 63), want: scope.LabelledClaims},
		"long":       {reason: "the policy leaves the label off", node: strings.Repeat("n", 64), want: scope.AllClaims},
		"no policy":  {reason: "nobody keeps the label", without: "policy", want: scope.AllClaims},
		"no binding": {reason: "a policy without a binding does nothing", without: "binding", want: scope.AllClaims},
		"other binding": {reason: "the binding is another policy's", want: scope.AllClaims, change: func(_ *admissionregistrationv1.MutatingAdmissionPolicy, b *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
			b.Spec.PolicyName = "other"
		}},
		"going": {reason: "a policy that is being deleted", want: scope.AllClaims, change: func(p *admissionregistrationv1.MutatingAdmissionPolicy, _ *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
			now := day()
			p.DeletionTimestamp, p.Finalizers = &now, []string{"x"}
		}},
		"namespaces": {reason: "claims elsewhere have no label", want: scope.AllClaims, change: func(_ *admissionregistrationv1.MutatingAdmissionPolicy, b *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
			b.Spec.MatchResources = &admissionregistrationv1.MatchResources{NamespaceSelector: some}
		}},
		"objects": {reason: "the policy itself is restricted", want: scope.AllClaims, change: func(p *admissionregistrationv1.MutatingAdmissionPolicy, _ *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
			p.Spec.MatchConstraints.ObjectSelector = some
		}},
		"unrestricted": {reason: "an API server fills in selectors that select all", want: scope.LabelledClaims, change: func(_ *admissionregistrationv1.MutatingAdmissionPolicy, b *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
			b.Spec.MatchResources = &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}}
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			policy, binding := shipped()
			if tc.change != nil {
				tc.change(policy, binding)
			}
			objects := map[string]runtime.Object{"policy": policy, "binding": binding}
			delete(objects, tc.without)
			api := fake.NewClientset()
			for _, o := range objects {
				if err := api.Tracker().Add(o); err != nil {
					t.Fatal(err)
				}
			}
			mode, node := tc.mode, tc.node
			if mode == "" {
				mode = Auto
			}
			if node == "" {
				node = "n1"
			}
			got, err := Choose(context.Background(), api.AdmissionregistrationV1(), mode, node)
			if err != nil {
				t.Fatal(err)
			}
			if got.Claims != tc.want || got.Why == "" {
				t.Errorf("%s: got %s (%s), want %s", tc.reason, got.Claims, got.Why, tc.want)
			}
			if mode == Auto && tc.want == scope.LabelledClaims && !got.Since.Equal(binding.CreationTimestamp.Time) {
				t.Errorf("the younger of the two counts: %s", got.Since)
			}
		})
	}
}

// TestChooseUnknown: whatever kept the agent from knowing, it starts, with what
// is always correct.
func TestChooseUnknown(t *testing.T) {
	for _, resource := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"} {
		policy, binding := shipped()
		api := fake.NewClientset(policy, binding)
		api.PrependReactor("get", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(admissionregistrationv1.Resource(resource), volume.ClaimLabelPolicy, nil)
		})
		got, err := Choose(context.Background(), api.AdmissionregistrationV1(), Auto, "n1")
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: the error is lost: %v", resource, err)
		}
		if diff := cmp.Diff(unknown(), got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", resource, diff)
		}
	}
}

func TestModes(t *testing.T) {
	long := strings.Repeat("n", 64)
	cases := map[string]struct {
		reason string
		mode   Mode
		node   string
		ok     bool
	}{
		"auto":          {"for any node", Auto, long, true},
		"all":           {"for any node", All, long, true},
		"labelled":      {"the node fits", Labelled, "n1", true},
		"labelled long": {"its claims never get a label", Labelled, long, false},
		"other":         {"there is no such mode", "some", "n1", false},
	}
	for name, tc := range cases {
		if err := tc.mode.Validate(tc.node); (err == nil) != tc.ok {
			t.Errorf("%s: %s: got %v", name, tc.reason, err)
		}
	}
}
