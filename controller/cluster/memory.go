package cluster

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// promise is an assignment that the cache does not show yet.
//
// Its course: open (before the write) → written, or back to nothing where the
// API server shows that it did not happen. An open promise that stays, because
// the write's outcome is not known, is written again to the same node. It ends
// when the cache shows the claim selected, the claim at or past the written
// version (then somebody took the selection back), or no claim.
type promise struct {
	hold hold
	// written is the claim's version with the selection; empty while open.
	written string
}

// memory is what lasts from one round to the next. It is lost with the leader:
// the next one reads the selections from the API server.
type memory struct {
	promises map[types.UID]promise
	// tried: claim → node → edition of the offers when it was assigned. A node
	// that gave the claim back is not asked again before they change.
	tried map[types.UID]map[string]string
	told  map[types.UID]telling
	// held are the claims that held space in the last round. One whose binding is
	// complete by now counts until its volume is seen, which may be later.
	held map[types.UID]types.NamespacedName
}

// telling is what a claim's user was told last.
type telling struct {
	causes string
	at     time.Time
}

func newMemory() *memory {
	return &memory{
		promises: make(map[types.UID]promise), tried: make(map[types.UID]map[string]string), told: make(map[types.UID]telling), held: make(map[types.UID]types.NamespacedName),
	}
}

// observe takes the claims of the cache and ends what they have overtaken.
func (m *memory) observe(claims map[types.UID]claim) {
	for uid, p := range m.promises {
		c, known := claims[uid]
		if !known || c.selected != "" || c.bound != "" || p.written != "" && atLeast(c.version, p.written) {
			delete(m.promises, uid)
		}
	}
	for uid := range m.tried {
		if c, known := claims[uid]; !known || c.bound != "" {
			delete(m.tried, uid)
		}
	}
	for uid := range m.told {
		if c, known := claims[uid]; !known || c.bound != "" || c.selected != "" {
			delete(m.told, uid)
		}
	}
}

// open notes an assignment that is about to be written.
func (m *memory) open(v verdict) {
	uid := v.want.claim.uid
	m.promises[uid] = promise{hold: holdOf(v.want.claim, v.node)}
	if m.tried[uid] == nil {
		m.tried[uid] = make(map[string]string)
	}
	m.tried[uid][v.node] = v.edition
}

// written notes that the API server has the selection of a node.
func (m *memory) written(c claim, node, version string) {
	m.promises[c.uid] = promise{hold: holdOf(c, node), written: version}
}

// undone notes that the assignment did not happen.
func (m *memory) undone(uid types.UID, node string) {
	delete(m.promises, uid)
	delete(m.tried[uid], node)
}

// atLeast reports whether version a is b or newer. Versions that cannot be
// compared are taken as equal: no API server has such.
func atLeast(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || n >= 0
}
