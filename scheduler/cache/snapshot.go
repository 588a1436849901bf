package cache

import (
	"math"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/binding"
)

// Snapshot is the View of one scheduling cycle. It never changes.
type Snapshot struct {
	free     *index[kind, *binding.Volume]
	segments *index[string, binding.Segment]
	atlas    *atlas

	mu sync.Mutex
	// most remembers MostAvailable by class, guarded by mu; it is only asked
	// for where a node is refused.
	most map[string]mostAvailable
}

type mostAvailable struct {
	bytes int64
	any   bool
}

// Node implements binding.View.
func (s *Snapshot) Node(object *corev1.Node) binding.Node { return s.atlas.node(object) }

// Shelf implements binding.View.
func (s *Snapshot) Shelf(claim *binding.Claim) binding.Shelf {
	if found := shelf(s.free, claim); len(found) > 0 {
		return found
	}
	return nil
}

// Room implements binding.View.
func (s *Snapshot) Room(class string) binding.Room { return room{s.segments.of(class)} }

// room is the segments of one class.
type room struct{ of[binding.Segment] }

// Segments implements binding.Room.
func (r room) Segments(buf []*binding.Segment, node *binding.Node) []*binding.Segment {
	r.reach(node, math.MinInt64, func(s *binding.Segment) bool {
		buf = append(buf, s)
		return true
	})
	return buf
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

// mostAvailable looks at the nodes, and not at the objects, because an object
// may be of a place that no node is in, or that the class does not allow.
func (s *Snapshot) mostAvailable(class *binding.Class) mostAvailable {
	var m mostAvailable
	here := room{s.segments.of(class.Name)}
	if here.group == nil {
		return m
	}
	var buf []*binding.Segment
	s.atlas.rows.each(func(r *row) {
		node := r.node()
		if !class.Allows(&node) {
			return
		}
		buf = here.Segments(buf[:0], &node)
		for _, segment := range buf {
			if free := segmentFree(segment); !m.any || free > m.bytes {
				m = mostAvailable{free, true}
			}
		}
	})
	return m
}

// segmentFree is the largest volume that the segment has room for.
func segmentFree(s *binding.Segment) int64 {
	free := s.Available
	if s.Unlimited {
		free = math.MaxInt64
	}
	if s.Bounded {
		free = min(free, s.MaximumVolumeSize)
	}
	return free
}
