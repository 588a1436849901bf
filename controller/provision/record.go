package provision

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// State says what is known of the volume that a record is about.
type State string

const (
	// StateStarted: CreateVolume was called, or is about to be, and its outcome
	// is not known. A volume may exist. Only the same request may be repeated.
	StateStarted State = "Started"
	// StateFailed: CreateVolume failed for good. The driver says that nothing
	// exists; the next attempt may ask for something else. Kept, because a
	// failed call that left something behind is found by undoing it.
	StateFailed State = "Failed"
	// StateCreated: the volume VolumeID exists; its PersistentVolume may.
	StateCreated State = "Created"
	// StateUndoing: the volume VolumeID is to be deleted; DeleteVolume may have
	// been called. There is no way back.
	StateUndoing State = "Undoing"
)

// Record is the durable memory of one started CreateVolume.
//
// Invariant: VolumeID is set in StateCreated and StateUndoing, and empty else.
// Request carries no secrets.
type Record struct {
	// Claim and ClaimUID are the claim. The UID identifies the record; a claim
	// of the same name with another UID is another claim.
	Claim    types.NamespacedName
	ClaimUID types.UID
	State    State
	// Request is what CreateVolume was called with.
	Request *csi.CreateVolumeRequest
	// VolumeID is the driver's id of the volume.
	VolumeID string
}

// Start is the record of a first call, or of a call that may ask for something
// else because the one before failed for good.
func Start(claim types.NamespacedName, uid types.UID, request *csi.CreateVolumeRequest) Record {
	return Record{Claim: claim, ClaimUID: uid, State: StateStarted, Request: request}
}

// BecomeFailed is the record after CreateVolume failed for good.
func (r Record) BecomeFailed() Record {
	r.State, r.VolumeID = StateFailed, ""
	return r
}

// BecomeCreated is the record after CreateVolume succeeded.
func (r Record) BecomeCreated(volumeID string) Record {
	r.State, r.VolumeID = StateCreated, volumeID
	return r
}

// BecomeRestarted is the record when it is no longer certain that the created
// volume exists, so that CreateVolume is to be called again.
func (r Record) BecomeRestarted() Record {
	r.State, r.VolumeID = StateStarted, ""
	return r
}

// BecomeUndoing is the record before DeleteVolume is called.
func (r Record) BecomeUndoing(volumeID string) Record {
	r.State, r.VolumeID = StateUndoing, volumeID
	return r
}

// Validate checks the invariants of a record that was read.
func (r Record) Validate() error {
	switch r.State {
	case StateStarted, StateFailed:
		if r.VolumeID != "" {
			return fmt.Errorf("record of claim %s: state %s with a volume id", r.ClaimUID, r.State)
		}
	case StateCreated, StateUndoing:
		if r.VolumeID == "" {
			return fmt.Errorf("record of claim %s: state %s without a volume id", r.ClaimUID, r.State)
		}
	default:
		return fmt.Errorf("record of claim %s: unknown state %q; it was written by a newer version", r.ClaimUID, r.State)
	}
	if r.ClaimUID == "" || r.Claim.Name == "" || r.Claim.Namespace == "" || r.Request.GetName() == "" {
		return fmt.Errorf("record of claim %s: claim or request is missing", r.ClaimUID)
	}
	return nil
}

// Records keeps records. A Put or Drop that returned nil survives a crash of
// the machine; one that returned an error may or may not have happened.
type Records interface {
	// Get returns the record of a claim, and whether there is one. An error
	// means that there may be one: nothing may then be done for the claim.
	Get(uid types.UID) (Record, bool, error)
	// Put writes or replaces a record.
	Put(Record) error
	// Drop removes a record; it is no error if there is none.
	Drop(uid types.UID) error
	// List returns all records that can be read, and the errors of the others
	// joined.
	List() ([]Record, error)
}
