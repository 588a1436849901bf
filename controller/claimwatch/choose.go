// Package claimwatch decides which claims a node's agent watches: every one, or
// only those with the label volume.LabelNode of its node. The label is kept by a
// MutatingAdmissionPolicy that is shipped in manifests/ (volume.ClaimLabelPolicy);
// what was written before the policy was is labelled here (Backlog).
//
// Watching every claim is always correct. Watching the labelled ones costs an
// agent what its own node holds, however large the cluster is, and rests on the
// policy. Claims without the label that concern an agent all the same are read
// from the API server when something else brings them up: by a provisioning
// record, or by the PersistentVolume of the node that they are bound to. Of those,
// a bound claim that no scheduler ever selected a node for (restored from a backup,
// with its volume) has its growth noticed late: when its PersistentVolume changes,
// when the agent starts, or when the cache is gone through anew, after 10 hours.
package claimwatch

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"

	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

// Mode is what the user asks for.
type Mode string

const (
	// Auto is Labelled where the policy and its binding exist and serve this
	// node, and All elsewhere.
	Auto Mode = "auto"
	// All watches every claim.
	All Mode = "all"
	// Labelled watches the claims with the node's label, on the user's word that
	// somebody keeps it.
	Labelled Mode = "labelled"
)

// Validate reports a mode that does not exist, or that cannot work on the node.
func (m Mode) Validate(node string) error {
	switch m {
	case Auto, All:
		return nil
	case Labelled:
		if _, ok := volume.ClaimLabelValue(node); !ok {
			return fmt.Errorf("%q cannot work: %s; use %q", m, longName(node), All)
		}
		return nil
	default:
		return fmt.Errorf("%q is unknown; use %q, %q or %q", m, Auto, All, Labelled)
	}
}

func longName(node string) string {
	return fmt.Sprintf("the node's name has %d bytes, which is too long for a label", len(node))
}

// Choice is what an agent watches, and why.
type Choice struct {
	Claims scope.Claims
	// Why is a clause for the log.
	Why string
	// Since is when the younger of policy and binding was made; zero if Claims
	// does not follow from them.
	Since time.Time
}

// Policies is the part of the API that Choose reads.
type Policies interface {
	typedv1.MutatingAdmissionPoliciesGetter
	typedv1.MutatingAdmissionPolicyBindingsGetter
}

// lookTimeout bounds the look at the policy: an agent must start where the API
// server does not answer.
const lookTimeout = 10 * time.Second

// Choose decides for the node, once. Where it cannot find out, it chooses what is
// always correct and returns the error beside it, to be logged.
func Choose(ctx context.Context, policies Policies, mode Mode, node string) (Choice, error) {
	switch mode {
	case All:
		return Choice{Claims: scope.AllClaims, Why: "asked for"}, nil
	case Labelled:
		return Choice{Claims: scope.LabelledClaims, Why: "asked for"}, nil
	case Auto:
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	policy, err := orNil(policies.MutatingAdmissionPolicies().Get(ctx, volume.ClaimLabelPolicy, metav1.GetOptions{}))
	if err != nil {
		return unknown(), fmt.Errorf("looking for MutatingAdmissionPolicy %s: %w", volume.ClaimLabelPolicy, err)
	}
	binding, err := orNil(policies.MutatingAdmissionPolicyBindings().Get(ctx, volume.ClaimLabelPolicy, metav1.GetOptions{}))
	if err != nil {
		return unknown(), fmt.Errorf("looking for MutatingAdmissionPolicyBinding %s: %w", volume.ClaimLabelPolicy, err)
	}
	return decide(node, policy, binding), nil
}

func unknown() Choice {
	return Choice{Claims: scope.AllClaims, Why: "it is not known whether the label is kept"}
}

// orNil takes NotFound for an answer: so does an API server say that it has no
// such kind, before Kubernetes 1.36.
func orNil[T any](o *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// decide judges policy and binding; each is nil if it does not exist.
func decide(node string, policy *admissionregistrationv1.MutatingAdmissionPolicy, binding *admissionregistrationv1.MutatingAdmissionPolicyBinding) Choice {
	all := func(why string) Choice { return Choice{Claims: scope.AllClaims, Why: why} }
	if _, ok := volume.ClaimLabelValue(node); !ok {
		return all(longName(node))
	}
	switch {
	case policy == nil || policy.DeletionTimestamp != nil:
		return all("the policy that keeps the label is not there")
	case binding == nil || binding.DeletionTimestamp != nil || binding.Spec.PolicyName != policy.Name:
		return all("the policy that keeps the label is not bound")
	case narrowed(policy.Spec.MatchConstraints) || binding.Spec.ParamRef != nil ||
		binding.Spec.MatchResources != nil && (narrowed(binding.Spec.MatchResources) || len(binding.Spec.MatchResources.ResourceRules) > 0):
		return all("the policy that keeps the label is restricted to some claims")
	}
	since := policy.CreationTimestamp.Time
	if binding.CreationTimestamp.After(since) {
		since = binding.CreationTimestamp.Time
	}
	return Choice{Claims: scope.LabelledClaims, Why: "the policy keeps the label", Since: since}
}

// narrowed reports whether m leaves out some objects of the kinds that it names.
func narrowed(m *admissionregistrationv1.MatchResources) bool {
	return m != nil && (selects(m.NamespaceSelector) || selects(m.ObjectSelector) || len(m.ExcludeResourceRules) > 0)
}

func selects(s *metav1.LabelSelector) bool {
	return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0
}
