package loopfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/berth-storage/berth/driver/pool"
)

// Delete implements pool.Pool.
func (p *Pool) Delete(ctx context.Context, name string) error {
	removed, err := p.delete(ctx, name)
	if removed {
		p.Notify()
	}
	return err
}

func (p *Pool) delete(ctx context.Context, name string) (removed bool, _ error) {
	// Freeing the device comes first and outside of the lock: it can wait for
	// another program, and a device in use keeps the volume.
	if err := p.Detach(ctx, name); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkName(name); err != nil {
		return false, err
	}
	if err := p.reload(name); err != nil {
		return false, err
	}
	r, ok := p.records[name]
	if !ok {
		return false, pool.ErrNotFound
	}
	if _, err := p.nextCount(); err != nil {
		return false, err
	}
	if r.State != deleting {
		// From here on the image is worthless, whatever happens.
		if err := p.save(name, r.becomeDeleting()); err != nil {
			return false, err
		}
	}
	if err := p.remove(ctx, name); err != nil {
		return true, err
	}
	return true, nil
}

// remove takes away a volume that is creating or deleting: device, image,
// record, in this order. No record is success. It needs mu.
func (p *Pool) remove(ctx context.Context, name string) error {
	if err := p.reload(name); err != nil {
		return err
	}
	r, ok := p.records[name]
	if !ok {
		return p.refuseStranger(name)
	}
	if r.State == ready {
		return fmt.Errorf("removing volume %s: it is in use", name)
	}
	if err := p.host.DetachLoop(ctx, p.imageFile(name)); err != nil {
		return inUse(err)
	}
	// xfs frees the space of an unlinked file some time later, and Capacity would
	// miss it; that of a truncated one is free at once.
	if err := os.Truncate(p.imageFile(name), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing volume %s: %w", name, err)
	}
	if err := p.host.RemoveFile(p.imageFile(name)); err != nil {
		return fmt.Errorf("removing volume %s: %w", name, err)
	}
	err := p.host.RemoveFile(p.recordFile(name))
	return errors.Join(err, p.reload(name))
}

// refuseStranger keeps Create from taking over an image that no record is about.
func (p *Pool) refuseStranger(name string) error {
	_, err := os.Lstat(p.imageFile(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(&pool.DamagedError{Name: name, Problem: "the image " + p.imageFile(name) + " has no record"}, err)
}

// finish brings a volume into order after a crash. It needs mu, or to be alone.
func (p *Pool) finish(ctx context.Context, name string) error {
	r, ok := p.records[name]
	if !ok {
		return nil
	}
	if r.State != ready {
		return p.remove(ctx, name)
	}
	size, err := p.imageSize(name, r)
	if err != nil || size == r.Size {
		return err
	}
	// Grow had extended the image before its record. The space is taken and a
	// device shows it, so the record says so; an image is never cut.
	n, err := p.nextCount()
	if err != nil {
		return err
	}
	r.Size, r.Allocation = size, n
	return p.save(name, r)
}

// inUse turns the machine's word for it into the contract's.
func inUse(err error) error {
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("%w: %w", pool.ErrInUse, err)
	}
	return err
}
