package cache

// pages is an array that copies on write, a page at a time.
type pages[T any] struct {
	epoch uint64
	all   []*page[T]
}

type page[T any] struct {
	epoch uint64
	items [fan]T
}

// get is nil beyond what was ever set.
func (p *pages[T]) get(n uint32) *T {
	at := int(n / fan)
	if at >= len(p.all) || p.all[at] == nil {
		return nil
	}
	return &p.all[at].items[n%fan]
}

// own returns pages that may be changed in this epoch.
func (p *pages[T]) own(epoch uint64) *pages[T] {
	if p == nil {
		return &pages[T]{epoch: epoch}
	}
	if p.epoch == epoch {
		return p
	}
	return &pages[T]{epoch: epoch, all: append([]*page[T](nil), p.all...)}
}

// at needs own pages. It makes an item writable.
func (p *pages[T]) at(n uint32) *T {
	at := int(n / fan)
	for at >= len(p.all) {
		p.all = append(p.all, nil)
	}
	switch old := p.all[at]; {
	case old == nil:
		p.all[at] = &page[T]{epoch: p.epoch}
	case old.epoch != p.epoch:
		c := *old
		c.epoch = p.epoch
		p.all[at] = &c
	}
	return &p.all[at].items[n%fan]
}
