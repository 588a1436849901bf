package oracle

import "github.com/berth-storage/berth/scheduler/plugin"

// phase says where a difference can be seen.
type phase string

const (
	// asked: in what one question to both sides is answered.
	asked phase = "asked"
	// apart: in a test of its own, as one question does not show it.
	apart phase = "apart"
)

// phases are all differences that the oracle knows.
func phases() map[plugin.Difference]phase {
	return map[plugin.Difference]phase{
		plugin.DifferenceHolds: asked, plugin.DifferenceJointCapacity: asked, plugin.DifferenceBoundedAndFree: asked,
		plugin.DifferenceMatching: asked, plugin.DifferencePrebound: asked, plugin.DifferenceMatchFields: asked,
		plugin.DifferenceSelectedHere: asked, plugin.DifferenceReserved: asked, plugin.DifferenceSource: asked,
		plugin.DifferenceRefused: asked, plugin.DifferenceAttachedOwn: asked, plugin.DifferenceAttachedAny: asked,
		plugin.DifferencePreemption: asked, plugin.DifferenceLimitGrace: asked, plugin.DifferenceDriverMissing: asked,
		plugin.DifferenceForeignEphemeral: asked, plugin.DifferenceClaimErrors: asked, plugin.DifferenceScorePools: asked,
		plugin.DifferenceScoreUnpublished: asked, plugin.DifferencePreScore: asked, plugin.DifferenceDetails: asked,
		plugin.DifferenceWrites: asked, plugin.DifferenceUndo: asked, plugin.DifferenceClaimTwice: asked,
		plugin.DifferenceReserveAgain: asked, plugin.DifferenceHuge: asked, plugin.DifferenceSelectedNowhere: asked,
		plugin.DifferenceNoPoll: apart, plugin.DifferenceHints: apart,
	}
}
