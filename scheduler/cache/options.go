package cache

import (
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"
)

// Options are what a Cache needs beside the informers.
type Options struct {
	Clock clock.WithTicker
	// Ended is called, without a lock, when time alone ended a hold, a refusal or
	// a remembered limit, for which no event of the API will tell.
	Ended func()
	// AttachGrace is how long a vanished attach limit is remembered; 0 is not at
	// all.
	AttachGrace time.Duration
	// Sharing tells which classes of other drivers share a pool.
	Sharing []Sharing
	// Snapshots may be nil: claims made from snapshots then go anywhere.
	Snapshots Snapshots
}

// Sharing says that the classes of a driver that have one value of a parameter
// take their volumes from one pool in each topology, although the driver does not
// say so in its capacity objects. Without it a driver's object is taken as a pool
// of its own, and what one class takes is not missed by another.
type Sharing struct {
	Driver string
	// Parameter of the StorageClass; empty: all classes of the driver share.
	Parameter string
}

// sharedPool is the pool of a capacity object by the rules, false where none
// applies.
func sharedPool(rules []Sharing, class *storagev1.StorageClass, p *place) (string, bool) {
	if class == nil {
		return "", false
	}
	for _, r := range rules {
		if r.Driver != class.Provisioner {
			continue
		}
		value := ""
		if r.Parameter != "" {
			value = class.Parameters[r.Parameter]
		}
		return "shared " + r.Driver + "\x00" + value + "\x00" + p.id, true
	}
	return "", false
}
