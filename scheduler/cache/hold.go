package cache

// hold is one claim's claim on space, keyed by the claim's UID so that a
// namesake never inherits it. It exists while the claim is selected for a node
// or reserved for one.
//
// Its course: reserved (Reserve) → selected (the claim's annotation arrived) →
// volume known. From there the pool counts the volume by its number, and the
// hold itself weighs nothing.
type hold struct {
	// claim is the claim as last seen; its uid is always set.
	claim claimFacts
	// reserved is a decision that is not in the informer's claim yet.
	reserved *reservation
	// gone is the name of the claim's volume that was seen deleted: a claim
	// that still names it awaits nothing.
	gone string
	// charged are the pools that count the hold as pending, and node where.
	charged []string
	node    string
}

// reservation is made by Reserve and ends when no pod wants it any more, or
// when the informer shows what became of it.
type reservation struct {
	node, class string
	bytes       int64
	// owners are the UIDs of the pods that reserved: two pods may share a claim.
	owners map[string]struct{}
	// written is the version that the API server gave the claim with its
	// selection; empty before.
	written string
	// uncertain: a write timed out and may have happened.
	// Without owners it ends at a deadline of the ledger.
	uncertain bool
}

// target is the place of the hold: the claim's own annotation is the truth, a reservation
// only stands in for it.
func (h *hold) target() (node, class string, bytes int64) {
	if h.claim.selected != "" {
		return h.claim.selected, h.claim.class, h.claim.bytes
	}
	if h.reserved != nil {
		return h.reserved.node, h.reserved.class, h.reserved.bytes
	}
	return "", "", 0
}

// awaits reports whether a volume is yet to come for the claim, given that none
// is known. A claim may name its volume before the volume's own event arrives.
func (h *hold) awaits() bool {
	node, _, _ := h.target()
	return node != "" && !h.claim.lost && (h.claim.volumeName == "" || h.claim.volumeName != h.gone)
}

// settleReservation drops a reservation that the informer's claim has overtaken:
// the selection arrived, or was written and is removed again.
func (h *hold) settleReservation() {
	r := h.reserved
	switch {
	case r == nil:
	case h.claim.selected != "":
		h.reserved = nil
	case r.written != "" && h.claim.version != "" && atLeast(h.claim.version, r.written):
		h.reserved = nil
	}
}

// empty reports whether nothing is left to hold.
func (h *hold) empty() bool { return h.reserved == nil && h.claim.selected == "" }
