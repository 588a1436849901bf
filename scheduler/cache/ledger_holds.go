package cache

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/volume"
)

// reserve starts a hold for a claim on a node on behalf of a pod. Reserving
// again changes nothing but the owners.
func (l *ledger) reserve(c claimFacts, node, owner string) {
	h := l.holds[c.uid]
	if h == nil {
		h = &hold{claim: c}
		l.holds[c.uid] = h
	}
	if h.claim.selected != "" {
		return
	}
	if h.reserved == nil {
		h.reserved = &reservation{node: node, class: c.class, bytes: c.bytes, owners: map[string]struct{}{}}
	}
	h.reserved.owners[owner] = struct{}{}
	l.place([]string{c.uid})
}

// written notes the version of the claim that carries the selection.
func (l *ledger) written(uid, version string) {
	if h := l.holds[uid]; h != nil && h.reserved != nil {
		h.reserved.written = version
		h.settleReservation()
		l.place([]string{uid})
	}
}

// uncertain notes that the selection may have been written.
func (l *ledger) uncertain(uid string) {
	if h := l.holds[uid]; h != nil && h.reserved != nil {
		h.reserved.uncertain = true
	}
}

// release ends a pod's part in a reservation. What was written, or may have
// been, stays held until the informer tells, so that no moment exists in which
// the API says selected and the ledger says free.
func (l *ledger) release(uid, owner string, now time.Time) {
	h := l.holds[uid]
	if h == nil || h.reserved == nil {
		return
	}
	r := h.reserved
	if _, mine := r.owners[owner]; !mine {
		return
	}
	delete(r.owners, owner)
	switch {
	case len(r.owners) > 0:
		return
	case r.written != "":
		return
	case r.uncertain:
		l.deadlines[uid] = now.Add(l.grace)
		return
	}
	h.reserved = nil
	l.place([]string{uid})
}

// reservedNode is the node that a claim is reserved for, while its annotation
// does not say so yet.
func (l *ledger) reservedNode(uid string) string {
	if h := l.holds[uid]; h != nil && h.reserved != nil && h.claim.selected == "" {
		return h.reserved.node
	}
	return ""
}

// place charges holds to the pools where their volumes may land: every pool
// that the class offers the node, as the driver chooses among them. A hold
// whose volume is known weighs nothing here.
func (l *ledger) place(uids []string) {
	touched := map[string]struct{}{}
	for _, uid := range uids {
		h := l.holds[uid]
		if h == nil {
			continue
		}
		for _, id := range h.charged {
			delete(l.pools[id].pending, uid)
			touched[id] = struct{}{}
		}
		h.charged = nil
		l.enlist(uid, h)
		if h.empty() {
			delete(l.holds, uid)
			continue
		}
		node, class, bytes := h.target()
		if len(l.volumesOf[uid]) > 0 || !h.awaits() {
			continue
		}
		h.charged = l.reached(class, node)
		for _, id := range h.charged {
			l.pools[id].pending[uid] = bytes
			touched[id] = struct{}{}
		}
	}
	for id := range touched {
		l.refresh(id)
	}
}

// enlist keeps byClass and byNode true for a hold.
func (l *ledger) enlist(uid string, h *hold) {
	node, class, _ := h.target()
	if h.node != node {
		remove(l.byNode, h.node, uid)
		if _, gone := l.gone[h.node]; gone && len(l.byNode[h.node]) == 0 {
			delete(l.gone, h.node)
			delete(l.nodes, h.node)
		}
		add(l.byNode, node, uid)
		h.node = node
	}
	if h.empty() {
		remove(l.byClass, h.claim.class, uid)
		return
	}
	add(l.byClass, class, uid)
}

func add(m map[string]map[string]struct{}, key, uid string) {
	if key == "" {
		return
	}
	if m[key] == nil {
		m[key] = map[string]struct{}{}
	}
	m[key][uid] = struct{}{}
}

func remove(m map[string]map[string]struct{}, key, uid string) {
	delete(m[key], uid)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// reached lists the pools that a class offers a node.
func (l *ledger) reached(class, node string) []string {
	labels, known := l.nodes[node]
	if !known {
		return nil
	}
	var out []string
	for _, s := range (room{l.segments.of(class)}).Segments(nil, &binding.Node{Name: node, Labels: labels}) {
		if !slices.Contains(out, s.Pool) {
			out = append(out, s.Pool)
		}
	}
	return out
}

// settle keeps the bytes of a volume that has just appeared, for the objects
// that cannot tell by number whether they contain it.
func (l *ledger) settle(h *hold, v volumeFacts) {
	if len(h.charged) == 0 {
		return
	}
	st := &settlement{bytes: v.bytes, since: map[string]string{}}
	for _, id := range h.charged {
		for _, o := range l.pools[id].objects {
			if o.allocation == volume.Unnumbered || v.allocation == volume.Unnumbered {
				st.since[o.key] = o.version
			}
		}
		if len(st.since) > 0 {
			st.pools = append(st.pools, id)
		}
	}
	if len(st.since) == 0 {
		return
	}
	l.settlements[v.name] = st
	l.deadlines[settlementKey(v.name)] = time.Time{}
	for _, id := range st.pools {
		l.pools[id].settling[v.name] = st
		l.refresh(id)
	}
}

// settlementKey is a volume's among the deadlines. No claim UID begins so.
func settlementKey(name string) string { return "volume " + name }

func (l *ledger) endSettlement(name string) {
	st := l.settlements[name]
	if st == nil {
		return
	}
	delete(l.settlements, name)
	delete(l.deadlines, settlementKey(name))
	for _, id := range st.pools {
		if p := l.pools[id]; p != nil {
			delete(p.settling, name)
			l.refresh(id)
		}
	}
}

// schedule gives new settlements their deadline and returns the next deadline
// of all, zero for none.
func (l *ledger) schedule(now time.Time) time.Time {
	var next time.Time
	for key, at := range l.deadlines {
		if at.IsZero() {
			at = now.Add(l.grace)
			l.deadlines[key] = at
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// expire ends what has waited long enough. It reports whether any did.
func (l *ledger) expire(now time.Time) bool {
	ended := false
	for uid, at := range maps.Clone(l.deadlines) {
		if at.IsZero() || at.After(now) {
			continue
		}
		ended = true
		delete(l.deadlines, uid)
		if name, ok := strings.CutPrefix(uid, settlementKey("")); ok {
			l.endSettlement(name)
			continue
		}
		if h := l.holds[uid]; h != nil && h.reserved != nil && len(h.reserved.owners) == 0 && h.reserved.uncertain && h.reserved.written == "" {
			h.reserved = nil
			l.place([]string{uid})
		}
	}
	return ended
}

// HoldsOn reports whether space is held for a claim on the node.
func (c *Cache) HoldsOn(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ledger.byNode[node]) > 0
}
