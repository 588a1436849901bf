package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Handler is told which plugins there are. Calls for one driver name never
// overlap; calls for different names may.
type Handler interface {
	// Register takes a driver into use. Its error goes to the plugin as the
	// reason for a refusal, and the attempt is repeated with backoff. It must be
	// safe to repeat. A call for a name that is registered already replaces the
	// endpoint; if it fails, the earlier registration stays in force.
	Register(ctx context.Context, p Plugin) error
	// Deregister says that the socket of the registration in force is gone.
	Deregister(ctx context.Context, p Plugin)
}

// Watcher finds the plugins that announce themselves in a folder.
type Watcher struct {
	dir     string
	handler Handler
	clock   clock.Clock
	names   *names

	// Only Run's goroutine touches these.
	notify    *fsnotify.Watcher
	instances map[string]*instance
	running   sync.WaitGroup
}

// NewWatcher makes a watcher of dir, <root>/plugins_registry.
func NewWatcher(dir string, handler Handler, clk clock.Clock) *Watcher {
	return &Watcher{
		dir:       filepath.Clean(dir),
		handler:   handler,
		clock:     clk,
		names:     &names{byName: make(map[string]*name)},
		instances: make(map[string]*instance),
	}
}

// Run watches until ctx ends, and then returns nil. It leaves the registrations
// as they are: the end of the agent is not the end of the drivers. The folder
// is made if it is missing, now or later.
func (w *Watcher) Run(ctx context.Context) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching plugin registrations: %w", err)
	}
	defer notify.Close()
	w.notify = notify
	ctx, cancel := context.WithCancel(ctx)
	defer w.running.Wait()
	defer cancel()

	if err := w.rescan(ctx, change{}); err != nil {
		return err
	}
	for {
		var what change
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-notify.Events:
			switch {
			case !open:
				return errors.New("watching plugin registrations: the watch ended")
			case filepath.Dir(e.Name) == filepath.Dir(w.dir) && e.Name != w.dir:
				continue // a neighbour of the folder
			case e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
				what.gone = filepath.Clean(e.Name)
			case e.Has(fsnotify.Create):
				what.made = filepath.Clean(e.Name)
			default:
				continue
			}
		case err := <-notify.Errors:
			// After an overflow events are missing; the rescan makes up for them.
			klog.FromContext(ctx).Error(err, "watching plugin registrations failed, scanning again")
		}
		if err := w.rescan(ctx, what); err != nil {
			return err
		}
	}
}

// change is what an event says. Events lag behind the folder: by the time that
// one is read, more may have happened.
type change struct{ made, gone string }

// rescan makes the instances agree with the sockets in the folder.
func (w *Watcher) rescan(ctx context.Context, what change) error {
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of plugin registrations: %w", err)
	}
	found := make(map[string]fs.FileInfo)
	// Only its parent tells of the folder's removal at once: sockets that are
	// bound in it keep the folder itself alive in the kernel.
	if err := w.notify.Add(filepath.Dir(w.dir)); err != nil {
		return fmt.Errorf("watching the parent of %s: %w", w.dir, err)
	}
	// A folder that is removed meanwhile holds nothing; the event of that is
	// still to come, and makes it again.
	if err := w.walk(ctx, w.dir, found); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("scanning plugin registrations in %s: %w", w.dir, err)
	}
	for path, i := range w.instances {
		now, there := found[path]
		if there && !i.ended() && sameSocket(now, i.info) && !i.replaced(what) {
			delete(found, path)
			continue
		}
		i.end()
		// One that has not left yet stays known, so that the next waits for it.
		if !there && i.left() {
			delete(w.instances, path)
		}
	}
	for path, info := range found {
		w.start(ctx, path, info, what.made == path || what == change{})
	}
	return nil
}

// walk collects the sockets in dir and below it. A folder is watched before it
// is read, so that what appears in between is reported. Names that begin with
// a dot are ignored, and so is everything that is not itself a socket: a
// symbolic link could point outside of what root controls.
func (w *Watcher) walk(ctx context.Context, dir string, found map[string]fs.FileInfo) error {
	if err := w.notify.Add(dir); err != nil {
		return fmt.Errorf("watching %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading %s: %w", dir, err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir():
			// A subfolder may vanish while it is read; its removal is reported.
			if err := w.walk(ctx, path, found); err != nil && !errors.Is(err, fs.ErrNotExist) {
				klog.FromContext(ctx).Error(err, "scanning a folder of plugin registrations failed", "path", path)
			}
		case e.Type() == fs.ModeSocket:
			if info, err := e.Info(); err == nil {
				found[path] = info
			}
		}
	}
	return nil
}

func (w *Watcher) start(ctx context.Context, path string, info fs.FileInfo, announced bool) {
	own, cancel := context.WithCancel(ctx)
	i := &instance{
		path: path, info: info, announced: announced, ctx: own,
		before:  w.instances[path],
		handler: w.handler,
		names:   w.names,
		clock:   w.clock,
		end:     cancel,
		done:    make(chan struct{}),
		again:   make(chan struct{}, 1),
	}
	w.instances[path] = i
	w.running.Go(func() { i.run(ctx) })
}

// sameSocket compares inode and time of making: file systems give the inode of
// a removed socket to the next one.
func sameSocket(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}

// within reports whether path is base or lies below it.
func within(path, base string) bool {
	return base != "" && (path == base || strings.HasPrefix(path, base+string(filepath.Separator)))
}
