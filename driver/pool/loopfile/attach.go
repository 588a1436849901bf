package loopfile

import (
	"context"
	"fmt"
)

// Attach implements pool.Pool.
func (p *Pool) Attach(ctx context.Context, name string) (string, error) {
	v, err := p.Lookup(ctx, name)
	if err != nil {
		return "", err
	}
	l, err := p.host.AttachLoop(ctx, p.imageFile(name))
	if err != nil {
		return "", fmt.Errorf("attaching volume %s: %w", name, err)
	}
	if l.Size < v.Size {
		// A Grow was cut short between file and device.
		if err := p.host.GrowLoop(ctx, l.Device); err != nil {
			return "", err
		}
	}
	return l.Device, nil
}

// Attached implements pool.Pool.
func (p *Pool) Attached(_ context.Context, name string) (string, error) {
	if p.checkName(name) != nil {
		return "", nil //nolint:nilerr // no volume can have that name, so none is attached
	}
	loops, err := p.host.LoopsUnder(p.imageFile(name))
	if err != nil {
		return "", err
	}
	for _, l := range loops {
		if !l.FileGone {
			return l.Device, nil
		}
	}
	return "", nil
}

// Detach implements pool.Pool.
func (p *Pool) Detach(ctx context.Context, name string) error {
	if p.checkName(name) != nil {
		return nil //nolint:nilerr // no volume can have that name, so none is attached
	}
	if err := p.host.DetachLoop(ctx, p.imageFile(name)); err != nil {
		return fmt.Errorf("detaching volume %s: %w", name, inUse(err))
	}
	return nil
}

// growDevice makes an attached volume's device as long as the volume.
func (p *Pool) growDevice(ctx context.Context, name string, size int64) error {
	loops, err := p.host.LoopsUnder(p.imageFile(name))
	if err != nil {
		return err
	}
	for _, l := range loops {
		if l.FileGone || l.Size >= size {
			continue
		}
		if err := p.host.GrowLoop(ctx, l.Device); err != nil {
			return fmt.Errorf("growing volume %s: %w", name, err)
		}
	}
	return nil
}
