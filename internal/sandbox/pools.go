package sandbox

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
)

// poolFilesystem is the filesystem of the pools; with reflink, so that a pool
// backend can copy an image without copying its data.
const poolFilesystem = "xfs"

// makePools gives each node its pool, side by side.
func (c *Cluster) makePools(ctx context.Context) error {
	if len(c.nodes) == 0 {
		return nil
	}
	return c.step(fmt.Sprintf("%d storage pools", len(c.nodes)), func() error {
		group, ctx := errgroup.WithContext(ctx)
		for _, n := range c.nodes {
			group.Go(func() error {
				if err := c.makePool(ctx, n); err != nil {
					return fmt.Errorf("making the pool of %s: %w", n.Name, err)
				}
				return nil
			})
		}
		return group.Wait()
	})
}

// makePool makes a sparse file into a filesystem, mounted at the node's pool.
func (c *Cluster) makePool(ctx context.Context, n Node) error {
	for _, dir := range []string{n.Root(), n.Pool(), n.Runtime()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	size := c.options.PoolSize
	if own, ok := c.options.PoolSizes[n.Name]; ok {
		size = own
	}
	image, err := os.OpenFile(n.PoolImage(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := image.Truncate(size); err != nil {
		image.Close()
		return err
	}
	if err := image.Close(); err != nil {
		return err
	}
	loop, err := c.machine.AttachLoop(ctx, n.PoolImage())
	if err != nil {
		return err
	}
	if err := c.machine.Format(ctx, loop.Device, poolFilesystem, []string{"-m", "reflink=1"}); err != nil {
		return err
	}
	return c.machine.MountFilesystem(ctx, loop.Device, n.Pool(), poolFilesystem, nil)
}
