package provision

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-storage/berth/controller/scope"
)

// Action is what is to be done for a claim.
type Action int

const (
	// Ignore: the claim is not ours, or not now. An event of the object that is
	// missing brings it back.
	Ignore Action = iota
	// Provision: the claim is to get a volume here.
	Provision
	// Leave: another program provisions the claim; the user is told.
	Leave
	// Refuse: the claim asks for what cannot be given; the user is told.
	Refuse
)

// Why says what decided. The set is closed; each is a metric label and stands
// in logs. It is no volume.Reason: those are about nodes and pods, and the
// scheduler's metrics list them all.
type Why string

const (
	// WhyWanted: everything holds.
	WhyWanted Why = "Wanted"
	// WhyGone: the claim does not exist any more, or is being deleted.
	WhyGone Why = "Gone"
	// WhyNotOurs: another driver, or another node, or no node yet.
	WhyNotOurs Why = "NotOurs"
	// WhyBound: the claim names its volume already.
	WhyBound Why = "Bound"
	// WhyProvisioned: the PersistentVolume exists and waits to be bound.
	WhyProvisioned Why = "Provisioned"
	// WhyNoClass: the StorageClass does not exist.
	WhyNoClass Why = "NoClass"
	// WhyForeignClass: the StorageClass is another driver's.
	WhyForeignClass Why = "ForeignClass"
	// WhySelector: a claim with a selector wants an existing volume.
	WhySelector Why = "Selector"
	// WhyPopulator: a volume populator fills the claim and provides its volume.
	WhyPopulator Why = "Populator"
	// WhyDataSource: snapshots and clones as a source are not served here.
	WhyDataSource Why = "DataSource"
	// WhyAttributesClass: VolumeAttributesClasses are not served here.
	WhyAttributesClass Why = "AttributesClass"
)

// Verdict is an Action, what decided it, and a sentence for the user where
// there is one to tell.
type Verdict struct {
	Action Action
	Why    Why
	Detail string
}

// question is everything that decide may see.
type question struct {
	scope scope.Scope
	// claim is nil if no claim of the UID exists. It may be stale: confirm asks
	// again.
	claim *corev1.PersistentVolumeClaim
	// class is nil if the claim's class does not exist. It may be stale; a
	// class's parameters and provisioner cannot change.
	class *storagev1.StorageClass
	// published says that a PersistentVolume of the claim's name is known.
	published bool
}

// decide says what is to be done for a claim that has no record.
func decide(q question) Verdict {
	claim := q.claim
	switch {
	case claim == nil || claim.DeletionTimestamp != nil:
		return Verdict{Action: Ignore, Why: WhyGone}
	case !q.scope.OwnsClaim(claim):
		return Verdict{Action: Ignore, Why: WhyNotOurs}
	case claim.Spec.VolumeName != "":
		return Verdict{Action: Ignore, Why: WhyBound}
	case q.class == nil:
		return Verdict{Action: Ignore, Why: WhyNoClass}
	case q.class.Provisioner != q.scope.Driver:
		return Verdict{Action: Ignore, Why: WhyForeignClass}
	case q.published:
		return Verdict{Action: Ignore, Why: WhyProvisioned}
	case claim.Spec.Selector != nil:
		return Verdict{
			Action: Refuse, Why: WhySelector,
			Detail: "spec.selector asks for an existing volume; remove it to have one provisioned",
		}
	case claim.Spec.VolumeAttributesClassName != nil && *claim.Spec.VolumeAttributesClassName != "":
		return Verdict{
			Action: Refuse, Why: WhyAttributesClass,
			Detail: fmt.Sprintf("driver %s has no volume attributes; remove spec.volumeAttributesClassName", q.scope.Driver),
		}
	default:
		return decideSource(claim)
	}
}

// decideSource looks at where the content of the volume comes from. The source
// is read from dataSourceRef, which the API server keeps equal to dataSource.
func decideSource(claim *corev1.PersistentVolumeClaim) Verdict {
	var kind, group string
	switch {
	case claim.Spec.DataSourceRef != nil:
		kind, group = claim.Spec.DataSourceRef.Kind, groupOf(claim.Spec.DataSourceRef.APIGroup)
	case claim.Spec.DataSource != nil:
		kind, group = claim.Spec.DataSource.Kind, groupOf(claim.Spec.DataSource.APIGroup)
	default:
		return Verdict{Action: Provision, Why: WhyWanted}
	}
	if (group == "" && kind == "PersistentVolumeClaim") || (group == "snapshot.storage.k8s.io" && kind == "VolumeSnapshot") {
		return Verdict{
			Action: Refuse, Why: WhyDataSource,
			Detail: fmt.Sprintf("a %s as data source is not supported; remove spec.dataSource", kind),
		}
	}
	return Verdict{
		Action: Leave, Why: WhyPopulator,
		Detail: fmt.Sprintf("assuming that an external populator of %s (API group %q) provides the volume", kind, group),
	}
}

func groupOf(g *string) string {
	if g == nil {
		return ""
	}
	return *g
}
