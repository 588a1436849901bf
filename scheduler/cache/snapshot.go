package cache

import (
	"math"
	"sync"

	"github.com/berth-storage/berth/scheduler/binding"
)

// Snapshot is the View of one scheduling cycle. It never changes.
type Snapshot struct {
	free     *index[*binding.Volume]
	segments *index[binding.Segment]
	// nodes: name → labels; shared with the ledger, which copies before it writes.
	nodes map[string]map[string]string

	mu sync.Mutex
	// most remembers MostAvailable by class, guarded by mu; it is only asked
	// for where a node is refused.
	most map[string]mostAvailable
}

type mostAvailable struct {
	bytes int64
	any   bool
}

// Shelves implements binding.View.
func (s *Snapshot) Shelves(class string, node binding.Node) []binding.Shelf {
	found := s.free.shelves(class, node)
	if len(found) == 0 {
		return nil
	}
	out := make([]binding.Shelf, 0, len(found))
	for _, sh := range found {
		out = append(out, volumeShelf{sh})
	}
	return out
}

// Segments implements binding.View.
func (s *Snapshot) Segments(class string, node binding.Node) []binding.Segment {
	var out []binding.Segment
	for _, sh := range s.segments.shelves(class, node) {
		for segment := range sh.from("") {
			out = append(out, segment)
		}
	}
	return out
}

// MostAvailable implements binding.View.
func (s *Snapshot) MostAvailable(class *binding.Class) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, known := s.most[class.Name]
	if !known {
		m = s.mostAvailable(class)
		s.most[class.Name] = m
	}
	return m.bytes, m.any
}

func (s *Snapshot) mostAvailable(class *binding.Class) mostAvailable {
	var m mostAvailable
	for name, labels := range s.nodes {
		node := binding.Node{Name: name, Labels: labels}
		if !class.Allows(node) {
			continue
		}
		for _, segment := range s.Segments(class.Name, node) {
			free := segment.Available
			if segment.Unlimited {
				free = math.MaxInt64
			}
			if segment.Bounded {
				free = min(free, segment.MaximumVolumeSize)
			}
			if !m.any || free > m.bytes {
				m = mostAvailable{free, true}
			}
		}
	}
	return m
}
