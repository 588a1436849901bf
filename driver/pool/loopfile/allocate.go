package loopfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/volume"
)

// Create implements pool.Pool.
func (p *Pool) Create(ctx context.Context, name string, spec pool.Spec) (pool.Volume, error) {
	if spec.Size <= 0 {
		return pool.Volume{}, fmt.Errorf("creating volume %s: size %d: must be above 0", name, spec.Size)
	}
	spec.Size = volume.RoundUp(spec.Size, pool.Unit)
	v, changed, err := p.create(ctx, name, spec)
	if changed || isExhausted(err) {
		p.Notify()
	}
	return v, err
}

// isExhausted reports a refusal for want of space. Whoever asked was told of more
// than there is, so it counts as a change: somebody else took the space.
func isExhausted(err error) bool {
	var e *pool.ExhaustedError
	return errors.As(err, &e)
}

// create reports changed also where it failed in a way that may have taken space.
func (p *Pool) create(ctx context.Context, name string, spec pool.Spec) (_ pool.Volume, changed bool, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, err := p.found(name)
	if err == nil {
		if r.Size != spec.Size || r.FSType != spec.FSType {
			return pool.Volume{}, false, &pool.ExistsError{Have: r.volume(name), Asked: spec}
		}
		return r.volume(name), false, nil
	}
	if !errors.Is(err, pool.ErrNotFound) || p.checkName(name) != nil {
		return pool.Volume{}, false, err
	}
	// What an earlier Create or Delete of this name left goes first, so that
	// the new volume reads as zeros.
	_, changed = p.records[name]
	if err := p.remove(ctx, name); err != nil {
		return pool.Volume{}, changed, err
	}
	if err := p.fits(spec.Size); err != nil {
		return pool.Volume{}, changed, err
	}
	n, err := p.nextCount()
	if err != nil {
		return pool.Volume{}, changed, err
	}
	r = record{State: creating, Size: spec.Size, FSType: spec.FSType, Allocation: n}
	if err := p.save(name, r); err != nil {
		return pool.Volume{}, true, errors.Join(err, p.remove(context.WithoutCancel(ctx), name))
	}
	if err := p.allocate(ctx, name, spec.Size, spec.Size); err != nil {
		// A cleanup that fails too is made up for by the next Create, Delete
		// or Open; the record is still there to tell.
		return pool.Volume{}, true, errors.Join(err, p.remove(context.WithoutCancel(ctx), name))
	}
	if err := p.save(name, r.becomeReady()); err != nil {
		return pool.Volume{}, true, err
	}
	return r.volume(name), true, nil
}

// allocate takes the space of an image, which needs more bytes than it has now.
// It needs mu.
func (p *Pool) allocate(ctx context.Context, name string, size, more int64) error {
	image := p.imageFile(name)
	err := p.host.Allocate(ctx, image, size)
	if errors.Is(err, syscall.ENOSPC) {
		c, capErr := p.capacity()
		// What the estimate called free was not: report that none of it is,
		// rather than a number that contradicts the refusal.
		return errors.Join(&pool.ExhaustedError{Pool: p.name, Asked: more, Free: min(c.Available, more-1)}, capErr)
	}
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return fmt.Errorf("the filesystem of pool %q cannot reserve space; put the pool on ext4 or xfs: %w", p.name, err)
	}
	if err != nil {
		return fmt.Errorf("allocating volume %s: %w", name, err)
	}
	return p.host.SyncDir(p.imagesDir())
}

// fits checks that the pool has room for more bytes. It needs mu.
func (p *Pool) fits(more int64) error {
	c, err := p.capacity()
	if err != nil {
		return err
	}
	if more > c.Available {
		return &pool.ExhaustedError{Pool: p.name, Asked: more, Free: c.Available}
	}
	return nil
}

// Grow implements pool.Pool. The order is file, record, device; the filesystem
// comes last and is the driver's. A device grown before its file would show
// nothing new.
func (p *Pool) Grow(ctx context.Context, name string, size int64) (pool.Volume, error) {
	size = volume.RoundUp(size, pool.Unit)
	r, changed, err := p.grow(ctx, name, size)
	if changed || isExhausted(err) {
		p.Notify()
	}
	if err != nil {
		return pool.Volume{}, err
	}
	return r.volume(name), p.growDevice(ctx, name, r.Size)
}

func (p *Pool) grow(ctx context.Context, name string, size int64) (_ record, changed bool, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, err := p.found(name)
	if err != nil || r.Size >= size {
		return r, false, err
	}
	has, err := p.imageSize(name, r)
	if err != nil {
		return r, false, err
	}
	// A Grow that was cut short may have taken the space already.
	more := max(0, size-has)
	if err := p.fits(more); err != nil {
		return r, false, err
	}
	n, err := p.nextCount()
	if err != nil {
		return r, false, err
	}
	if err := p.allocate(ctx, name, size, more); err != nil {
		return r, true, err
	}
	r.Size, r.Allocation = size, n
	return r, true, p.save(name, r)
}

// imageSize is the length of a ready volume's image; *pool.DamagedError where it
// is missing or shorter than its record says.
func (p *Pool) imageSize(name string, r record) (int64, error) {
	info, err := os.Stat(p.imageFile(name))
	if errors.Is(err, os.ErrNotExist) {
		return 0, &pool.DamagedError{Name: name, Problem: "its image " + p.imageFile(name) + " is gone"}
	}
	if err != nil {
		return 0, err
	}
	if info.Size() < r.Size {
		return 0, &pool.DamagedError{Name: name, Problem: fmt.Sprintf("its image %s has %d bytes of %d",
			p.imageFile(name), info.Size(), r.Size)}
	}
	return info.Size(), nil
}

// Lookup implements pool.Pool.
func (p *Pool) Lookup(_ context.Context, name string) (pool.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, err := p.found(name)
	if err != nil {
		return pool.Volume{}, err
	}
	_, err = p.imageSize(name, r)
	return r.volume(name), err
}

// List implements pool.Pool.
func (p *Pool) List(context.Context) ([]pool.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names, err := p.names()
	if err != nil {
		return nil, err
	}
	var all []pool.Volume
	for _, name := range names {
		r, err := p.found(name)
		if err != nil {
			continue
		}
		if _, err := p.imageSize(name, r); err == nil {
			all = append(all, r.volume(name))
		}
	}
	return all, nil
}

// MarkFormatted implements pool.Pool.
func (p *Pool) MarkFormatted(_ context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, err := p.found(name)
	if err != nil || r.Formatted {
		return err
	}
	r.Formatted = true
	return p.save(name, r)
}
