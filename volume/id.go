package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Key identifies a volume on a node: the driver that serves it and the id that
// the driver gave it. Two PersistentVolumes with one Key are one volume.
type Key struct {
	Driver string
	Handle string
}

// String is driver^handle, the tail of UniqueName.
func (k Key) String() string { return k.Driver + "^" + k.Handle }

// idMax is the longest volume_id that a CO must accept, in bytes (CSI spec,
// "Size Limits").
const idMax = 128

// ID is the bundled driver's volume_id: the pool that holds the volume and the
// volume's name in that pool.
type ID struct {
	// Pool is the pool's UUID.
	Pool string
	// Name is unique in the pool and safe as a file name: see SafeName.
	Name string
}

// String is pool/name, at most 128 bytes for a Name made by SafeName.
func (id ID) String() string { return id.Pool + "/" + id.Name }

// ParseID reads what String wrote. An id of another form is an error; a driver
// answers such an id as one of a volume that does not exist.
func ParseID(s string) (ID, error) {
	pool, name, ok := strings.Cut(s, "/")
	if !ok || pool == "" || len(s) > idMax || !isSafeName(pool) || !isSafeName(name) {
		return ID{}, fmt.Errorf("volume id %q: want <pool uuid>/<name>", s)
	}
	return ID{Pool: pool, Name: name}, nil
}

// safeNameMax leaves room in volume_id for a UUID (36 bytes) and the slash.
const safeNameMax = idMax - 36 - 1

// mappedPrefix begins the names that SafeName made up. A requested name that
// begins so is mapped too, which keeps the two kinds apart.
const mappedPrefix = "x-"

// SafeName turns the name of a CreateVolume or CreateSnapshot request into one
// that is safe as a file name and fits into an ID. A name that already is stays
// as it is; another gets a readable head and its sha256, so that two different
// names never meet.
func SafeName(requested string) string {
	if isSafeName(requested) && len(requested) <= safeNameMax && !strings.HasPrefix(requested, mappedPrefix) {
		return requested
	}
	sum := sha256.Sum256([]byte(requested))
	head := strings.Map(func(r rune) rune {
		if isSafeRune(r) {
			return r
		}
		return '-'
	}, requested)
	if len(head) > 20 {
		head = head[:20]
	}
	return mappedPrefix + head + "-" + hex.EncodeToString(sum[:])
}

func isSafeName(s string) bool {
	if s == "" || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, r := range s {
		if !isSafeRune(r) {
			return false
		}
	}
	return true
}

func isSafeRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r == '-' || r == '_' || r == '.'
}
