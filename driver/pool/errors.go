package pool

import (
	"errors"
	"fmt"

	"github.com/berth-storage/berth/volume"
)

// ErrNotFound is the error for a volume that the pool does not have.
var ErrNotFound = errors.New("no such volume in the pool")

// ErrInUse is the error for a volume whose device is mounted or open.
var ErrInUse = errors.New("the volume's device is in use")

// ExistsError is the error of Create for a name whose volume differs from what
// was asked.
type ExistsError struct {
	Have  Volume
	Asked Spec
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("volume %s exists with %s for %s; asked were %s for %s", e.Have.Name,
		volume.FormatBytes(e.Have.Size), usage(e.Have.FSType), volume.FormatBytes(e.Asked.Size), usage(e.Asked.FSType))
}

func usage(fstype string) string {
	if fstype == "" {
		return "raw block use"
	}
	return fstype
}

// ExhaustedError is the error of Create and Grow for a pool with too little
// free space.
type ExhaustedError struct {
	// Pool is the pool's name.
	Pool string
	// Asked is what more would have been taken from the pool, in bytes.
	Asked int64
	// Free is what can be taken from it, in bytes.
	Free int64
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("pool %q has %s free; %s more were asked", e.Pool, volume.FormatBytes(e.Free), volume.FormatBytes(e.Asked))
}

// DamagedError is the error for a volume that is there and cannot be used. It
// is left alone: only a person can tell what is to be saved.
type DamagedError struct {
	Name, Problem string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("volume %s is damaged: %s", e.Name, e.Problem)
}
