package story

import (
	"context"
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"
)

// untilFile reads a file again whenever it is written to, until it is as wanted.
func untilFile(ctx context.Context, path string, wanted func(content string) string) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	defer watcher.Close()
	if err := watcher.Add(path); err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	for {
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		missing := wanted(string(raw))
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %s (%w)", path, missing, ctx.Err())
		case err := <-watcher.Errors:
			return fmt.Errorf("watching %s: %w", path, err)
		case <-watcher.Events:
		}
	}
}
