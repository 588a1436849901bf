package plugin

import (
	"maps"
	"slices"
)

// Difference names one way in which BerthVolumes answers otherwise than
// upstream's VolumeBinding and NodeVolumeLimits do on the same objects. The set
// is closed: where the two differ and no Difference says why, BerthVolumes is
// wrong. The package doc tells each; a test holds the two together.
type Difference string

// The closed set.
const (
	// DifferenceHolds: capacity is what is published minus what is promised.
	DifferenceHolds Difference = "Holds"
	// DifferenceJointCapacity: the claims of a pod share a pool's bytes.
	DifferenceJointCapacity Difference = "JointCapacity"
	// DifferenceBoundedAndFree: capacity and maximumVolumeSize both bound a claim.
	DifferenceBoundedAndFree Difference = "BoundedAndFree"
	// DifferenceMatching: claims are matched to volumes jointly.
	DifferenceMatching Difference = "Matching"
	// DifferencePrebound: a claim whose reserved volume is out of reach is not provisioned.
	DifferencePrebound Difference = "Prebound"
	// DifferenceMatchFields: matchFields of a volume's affinity are honoured.
	DifferenceMatchFields Difference = "MatchFields"
	// DifferenceHuge: a claim for more than an int64 of bytes asks for as much.
	DifferenceHuge Difference = "Huge"
	// DifferenceSelectedNowhere: an empty selected node is none.
	DifferenceSelectedNowhere Difference = "SelectedNowhere"
	// DifferenceSelectedHere: a claim selected for the node is not asked for capacity again.
	DifferenceSelectedHere Difference = "SelectedHere"
	// DifferenceReserved: another pod's reservation of a claim counts as its selection.
	DifferenceReserved Difference = "Reserved"
	// DifferenceSource: a claim made from a snapshot or a claim goes where that is.
	DifferenceSource Difference = "Source"
	// DifferenceRefused: a node whose driver refused lately is the last choice.
	DifferenceRefused Difference = "Refused"
	// DifferenceAttachedOwn: a pod's own volume that is attached counts once.
	DifferenceAttachedOwn Difference = "AttachedOwn"
	// DifferenceAttachedAny: every VolumeAttachment counts.
	DifferenceAttachedAny Difference = "AttachedAny"
	// DifferencePreemption: a victim's attachment goes with the victim.
	DifferencePreemption Difference = "Preemption"
	// DifferenceLimitGrace: an attach limit that vanished is remembered.
	DifferenceLimitGrace Difference = "LimitGrace"
	// DifferenceDriverMissing: a missing driver is unresolvable, and may be expected by taint.
	DifferenceDriverMissing Difference = "DriverMissing"
	// DifferenceForeignEphemeral: another pod's broken ephemeral claim is no error.
	DifferenceForeignEphemeral Difference = "ForeignEphemeral"
	// DifferenceClaimTwice: a claim that stands twice in a pod counts once.
	DifferenceClaimTwice Difference = "ClaimTwice"
	// DifferenceClaimErrors: a claim that no node helps is refused with a reason.
	DifferenceClaimErrors Difference = "ClaimErrors"
	// DifferenceScorePools: a score sums the pools that a class's claims use.
	DifferenceScorePools Difference = "ScorePools"
	// DifferenceScoreUnpublished: a score for an object without capacity.
	DifferenceScoreUnpublished Difference = "ScoreUnpublished"
	// DifferencePreScore: pods with nothing to place are not scored.
	DifferencePreScore Difference = "PreScore"
	// DifferenceDetails: a reason carries a detail after upstream's sentence.
	DifferenceDetails Difference = "Details"
	// DifferenceReserveAgain: Reserve after Unreserve reserves again.
	DifferenceReserveAgain Difference = "ReserveAgain"
	// DifferenceWrites: patches with preconditions in the place of updates.
	DifferenceWrites Difference = "Writes"
	// DifferenceUndo: volumes reserved in vain are given back.
	DifferenceUndo Difference = "Undo"
	// DifferenceNoPoll: PreBind waits for events.
	DifferenceNoPoll Difference = "NoPoll"
	// DifferenceHints: hints wake only what an event can help.
	DifferenceHints Difference = "Hints"
)

// differences say each in a sentence.
func differences() map[Difference]string {
	return map[Difference]string{
		DifferenceHolds:            "What is promised to a claim and not yet inside a published capacity is subtracted from it; upstream promises the same bytes again.",
		DifferenceJointCapacity:    "All claims of a pod are judged together against the pools that they share, over classes; upstream judges each alone.",
		DifferenceBoundedAndFree:   "An object that publishes both a capacity and a maximum volume size must have room by both; upstream looks at the maximum alone.",
		DifferenceMatching:         "Where the greedy match of claims to volumes is not complete, another one is looked for; upstream refuses the node.",
		DifferencePrebound:         "A claim whose reserved volume cannot be reached from the node is refused there; upstream provisions it another one.",
		DifferenceMatchFields:      "Terms of a volume's node affinity with matchFields are honoured; upstream ignores the fields.",
		DifferenceHuge:             "A claim that asks for 8 EiB or more finds no capacity that is large enough; upstream takes such a number for 0 or less, and provisions it anywhere.",
		DifferenceSelectedNowhere:  "A selected-node annotation without a value selects nothing; upstream refuses the claim every node.",
		DifferenceSelectedHere:     "A claim that is selected for the node is not asked for capacity again, as its bytes are held; upstream may refuse it its own place.",
		DifferenceReserved:         "What another pod has reserved stays reserved until the API says so, whatever else changes: two pods of one claim never part, and no volume is promised twice; upstream forgets at any change of the object.",
		DifferenceSource:           "A claim made from a snapshot or from another claim is refused where that cannot be reached; upstream lets the driver fail.",
		DifferenceRefused:          "A node whose driver gave a claim of the class and size back is taken only where no other that takes the pod has room, until its capacity changes or two minutes pass; upstream tries it again at once.",
		DifferenceAttachedOwn:      "A volume that is still attached from the pod's former life on the node counts once; upstream counts it twice.",
		DifferenceAttachedAny:      "VolumeAttachments of migrated and of inline volumes, and those whose volume is gone, take their place; upstream counts CSI volumes that exist.",
		DifferencePreemption:       "In a dry run the attachments of evicted pods go with the pods; upstream still counts them, so that preemption never helps.",
		DifferenceLimitGrace:       "An attach limit that vanishes or becomes 0 is remembered for a grace; upstream takes any number in the meantime.",
		DifferenceDriverMissing:    "A node without a driver that must be there is unresolvable, as no eviction installs it, and a startup taint <driver>/… says so too; upstream calls it unschedulable and knows no taint.",
		DifferenceForeignEphemeral: "The ephemeral claim of a pod on the node that belongs to another object is not counted; upstream ends in an error.",
		DifferenceClaimTwice:       "A claim that a pod names in two volumes is one claim; upstream looks for a volume for each of them.",
		DifferenceClaimErrors:      "A claim that is missing or broken is told in words of ours behind the same code; the claim is named by namespace and name.",
		DifferenceScorePools:       "Where a class's claims use several objects, a score sums their capacities, and capacity means what is free of holds; upstream takes the last object's.",
		DifferenceScoreUnpublished: "An object that publishes only a maximum volume size counts as full; upstream ends in a panic.",
		DifferencePreScore:         "PreScore skips pods without a claim to place; upstream scores every node 0.",
		DifferenceDetails:          "A reason is upstream's sentence, a colon and a detail.",
		DifferenceReserveAgain:     "Reserve, Unreserve and Reserve with one state holds the volumes; upstream's second Reserve does not.",
		DifferenceWrites:           "All preconditions are looked at before the first write, writes are patches on a version, run at once, and are repeated on a conflict; upstream updates one object after another and stops at the first failure.",
		DifferenceUndo:             "A volume that was reserved for a pod whose binding fails is given back if nobody has touched it and no other pod counts on it; upstream leaves it. A selected node is never taken back, as upstream.",
		DifferenceNoPoll:           "PreBind returns at the event that completes the binding; upstream looks once a second, the first time after a second.",
		DifferenceHints:            "Hints look at class, pool, driver, size and node, wake on deletions that end holds and pods with claims when a driver stops tracking capacity; upstream wakes every pod on each change of a node or a volume, and some never.",
	}
}

// Differences lists the closed set, sorted.
func Differences() []Difference { return slices.Sorted(maps.Keys(differences())) }

// Sentence tells the difference.
func (d Difference) Sentence() string { return differences()[d] }
