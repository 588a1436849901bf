package volume

import "strconv"

// PoolCapacity is what a pool says of itself at one moment. The capacity
// ledger of the scheduler is built on the pair (Pool, Allocation).
type PoolCapacity struct {
	// Pool is the pool's UUID. All classes whose volumes live on one pool
	// share it, and so share its bytes.
	Pool string
	// Allocation is the pool's count of allocations (volumes created, grown,
	// deleted, ever) when the capacity was read. It never goes back.
	Allocation int64
	// Available is what can still be allocated, in bytes.
	Available int64
	// Total is the pool's size, in bytes, the reserve excluded.
	Total int64
	// MaximumVolumeSize is the largest volume that fits now, in bytes; 0 means
	// that Available is the only bound.
	MaximumVolumeSize int64
}

// Unnumbered is the allocation of an object that carries none.
const Unnumbered int64 = -1

// NumberOf reads a pool's UUID and allocation from the annotations of a
// PersistentVolume or CSIStorageCapacity: both, or "" and Unnumbered, as one
// alone orders nothing.
func NumberOf(annotations map[string]string) (pool string, allocation int64) {
	pool = annotations[AnnotationPool]
	n, err := strconv.ParseInt(annotations[AnnotationAllocation], 10, 64)
	if pool == "" || err != nil || n < 0 {
		return "", Unnumbered
	}
	return pool, n
}
