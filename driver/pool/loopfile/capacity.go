package loopfile

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/volume"
)

// What a new image costs its filesystem beside its bytes: its extents, its
// inode, its record. At most 1/1024 of the bytes, and never less than the base.
const (
	overheadBase  = 4 * volume.MiB
	overheadShare = 1024
)

func (p *Pool) imagesDir() string { return filepath.Join(p.dir, imagesDir) }

// Capacity implements pool.Pool.
func (p *Pool) Capacity(context.Context) (volume.PoolCapacity, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.capacity()
}

// capacity reads the filesystem. The sum of the volumes bounds it as well: should
// anybody punch holes into images, their space looks free and is not. It needs mu.
func (p *Pool) capacity() (volume.PoolCapacity, error) {
	u, err := p.host.Statfs(p.dir)
	if err != nil {
		return volume.PoolCapacity{}, fmt.Errorf("reading the free space of pool %q: %w", p.name, err)
	}
	total := max(0, u.TotalBytes-p.reserve)
	var held int64
	for _, r := range p.records {
		held = volume.AddSaturating(held, r.Size)
	}
	return volume.PoolCapacity{
		Pool:       p.uuid,
		Allocation: p.count,
		Available:  available(min(u.AvailableBytes-p.reserve, total-held)),
		Total:      total,
	}, nil
}

// available is the largest volume that free bytes have room for.
func available(free int64) int64 {
	free -= overheadBase + max(0, free)/overheadShare
	if free <= 0 {
		return 0
	}
	return free - free%pool.Unit
}
