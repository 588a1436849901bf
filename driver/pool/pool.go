// Package pool is the contract between the bundled driver and the places where
// volumes live. One folder below it holds one kind of place (loopfile: image
// files); package pooltest holds the suite that each of them passes.
//
// # Terms
//
// A pool is one store of bytes on one node, known by a UUID that is written
// when the pool is first opened and never changes, and by the name under which
// the node's configuration and StorageClasses speak of it. A volume is a run of
// bytes in a pool, known by a name that is unique there. Attaching a volume
// makes it a block device on the node.
//
// # Life of a volume
//
//	          Create            Attach             Detach           Delete
//	(nothing) ──────▶ allocated ──────▶ a device ───────▶ allocated ──────▶ (nothing)
//	                   Grow, MarkFormatted: at any time in between
//
// All of a volume's bytes are taken from the pool by Create and Grow, so that a
// write to it never finds the pool full. A new volume reads as zeros.
//
// # The count of allocations
//
// A pool counts the volumes that it ever created, grew or deleted. The count
// never goes back, also not over a crash. Volume.Allocation is the count that
// the volume's last allocation made; Capacity gives bytes and count of one
// moment, so that every allocation up to that count is contained in the bytes
// and none after it is. The scheduler's ledger rests on this.
//
// # Crashes and repeats
//
// Every call may be cut short at any point, by a crash or by an error, and may
// then be repeated, or be undone by its opposite; opening the pool again also
// finishes or takes back what a crash left half done. An error leaves it open
// whether the call had its effect. Data is removed by Delete alone.
//
// Calls for different volumes may run at the same time; those for one volume
// must not overlap.
package pool

import (
	"context"

	"github.com/berth-storage/berth/volume"
)

// Unit is what sizes of volumes are multiples of, in bytes.
const Unit = 4 * volume.MiB

// Pool is one store of volumes on this node. Its errors are those of this
// package (ErrNotFound, *ExistsError, *ExhaustedError, *DamagedError, ErrInUse),
// the context's, or those of something broken.
type Pool interface { //nolint:interfacebloat // one contract, one conformance suite for every backend
	// UUID is the pool's identity. It is part of every volume's id.
	UUID() string

	// Name is what the node's configuration calls the pool.
	Name() string

	// Capacity is what can be allocated now, and the count that belongs to
	// it. Creating one volume of Available bytes succeeds, unless somebody
	// outside of the pool takes the space first.
	Capacity(ctx context.Context) (volume.PoolCapacity, error)

	// OnChange has fn called after each change of the pool's capacity that the
	// pool made itself, until stop is called. fn must return at once and
	// must not call the pool. A pool on storage that others use too does not
	// notice them.
	OnChange(fn func()) (stop func())

	// Create allocates a volume. The size is rounded up to Unit. A volume of
	// this name with the same rounded size and filesystem type is
	// returned as it is; another is an *ExistsError. No space is an
	// *ExhaustedError, and nothing is left of it.
	Create(ctx context.Context, name string, spec Spec) (Volume, error)

	// Lookup finds a volume; ErrNotFound if there is none, *DamagedError if
	// what is there cannot be used.
	Lookup(ctx context.Context, name string) (Volume, error)

	// List gives the volumes that can be used, by name.
	List(ctx context.Context) ([]Volume, error)

	// Grow makes a volume at least size bytes long, rounded up to Unit, and
	// its device too where it is attached. A volume that has the size already
	// is success; none is ever shrunk. No space is an *ExhaustedError and the
	// volume stays as it was. ErrNotFound as for Lookup.
	Grow(ctx context.Context, name string, size int64) (Volume, error)

	// Delete frees a volume and its device. It is repeated until it returns
	// ErrNotFound: only that says that nothing is left. A volume whose device
	// is in use is ErrInUse and keeps its data.
	Delete(ctx context.Context, name string) error

	// Attach makes the volume a block device as long as the volume, or gives
	// the one that it has. ErrNotFound and *DamagedError as for Lookup.
	Attach(ctx context.Context, name string) (device string, err error)

	// Attached is the volume's device, "" for none. It needs no record of the
	// volume, and so never returns ErrNotFound.
	Attached(ctx context.Context, name string) (device string, err error)

	// Detach takes the device away. No device and no such volume are success;
	// a device in use is ErrInUse.
	Detach(ctx context.Context, name string) error

	// MarkFormatted records durably that the volume holds a filesystem, and
	// perhaps data, from now on. It must never be formatted again.
	MarkFormatted(ctx context.Context, name string) error

	// Close lets another process open the pool. The pool is not used after it.
	Close() error
}

// Spec is what a new volume is to be.
type Spec struct {
	// Size in bytes, more than 0.
	Size int64
	// FSType is the filesystem that the volume is made for, "" for a raw block
	// device. The pool only keeps it.
	FSType string
}

// Volume is a volume as the pool has it.
type Volume struct {
	// Name is unique in the pool.
	Name string
	// Size in bytes, a multiple of Unit unless a crash during Grow left more.
	Size int64
	// FSType as given to Create.
	FSType string
	// Allocation is the pool's count at the volume's last allocation.
	Allocation int64
	// Formatted says that MarkFormatted was called: it may hold data.
	Formatted bool
}
