// Package loopfile is the pool backend of image files: a folder on a filesystem
// that can reserve space for good (ext4, xfs), one file a volume, attached
// through loop devices.
//
// The folder holds
//
//	lock                  held by the process that has the pool open
//	pool.json             the pool's UUID, written once
//	allocations.json      an upper bound of the count of allocations
//	volumes/<name>.json   a volume's record, with its state
//	images/<name>.img     a volume's bytes, all of them allocated
//
// A record is written before the image that it is about comes, and goes after
// it went: creating → ready → deleting. So an image belongs to a record at
// every moment, a crash is finished on the record's evidence, and an image
// without a record is something that this package did not make and does not
// touch.
package loopfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/volume"
)

// Host is what the pool needs of the machine.
type Host interface {
	host.Loops
	host.Files
	Statfs(path string) (host.Usage, error)
}

// Options describe a pool.
type Options struct {
	// Name is what StorageClasses call the pool.
	Name string
	// Dir is the pool's folder. It must exist: a folder that is missing is more
	// likely a disk that is not mounted than a wish for a pool on another.
	Dir string
	// Anchor is a file outside of Dir that remembers which pool belongs there; its
	// folder must exist. While the pool's disk is not mounted, Dir is an empty
	// folder, and without the anchor a new pool would be made in it, on the wrong
	// disk. "" remembers nothing.
	Anchor string
	// Reserve is what the pool leaves free on its filesystem, in bytes.
	Reserve int64
	// Host is the machine.
	Host Host
}

// Pool is a pool of image files.
type Pool struct {
	pool.Notifier

	name    string
	uuid    string
	dir     string
	anchor  string
	reserve int64
	host    Host
	unlock  func() error

	// mu is held over a whole change of the allocation, so that Capacity
	// never sees one half done.
	mu sync.Mutex
	// The fields below are guarded by mu.
	records map[string]record // as on the disk, by name
	count   int64             // allocations so far
	promise int64             // what allocations.json holds; count ≤ promise
}

var _ pool.Pool = (*Pool)(nil)

const (
	layoutVersion = 1
	imagesDir     = "images"
	volumesDir    = "volumes"
	imageSuffix   = ".img"
	recordSuffix  = ".json"
)

// identity is the content of pool.json.
type identity struct {
	Version int    `json:"version"`
	UUID    string `json:"uuid"`
}

// Open opens the pool in a folder, makes one in a folder without, and finishes
// what a crash left half done. The pool is locked until Close.
func Open(ctx context.Context, o Options) (*Pool, error) {
	if o.Name == "" {
		return nil, errors.New("pool: name: must not be empty; StorageClasses name the pool by it")
	}
	if o.Reserve < 0 {
		return nil, fmt.Errorf("pool %q: reserve: %d is below 0", o.Name, o.Reserve)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("pool %q: %w", o.Name, err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, errors.Join(fmt.Errorf("pool %q: %s is not a folder; make it, or mount its disk there", o.Name, dir), err)
	}
	unlock, err := o.Host.LockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("pool %q: %w", o.Name, err)
	}
	p := &Pool{
		name: o.Name, dir: dir, anchor: o.Anchor, reserve: o.Reserve, host: o.Host, unlock: unlock,
		records: make(map[string]record),
	}
	if err := p.load(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("opening pool %q in %s: %w", o.Name, dir, err), unlock())
	}
	return p, nil
}

// UUID implements pool.Pool.
func (p *Pool) UUID() string { return p.uuid }

// Name implements pool.Pool.
func (p *Pool) Name() string { return p.name }

// Close implements pool.Pool.
func (p *Pool) Close() error { return p.unlock() }

func (p *Pool) imageFile(name string) string {
	return filepath.Join(p.dir, imagesDir, name+imageSuffix)
}

func (p *Pool) recordFile(name string) string {
	return filepath.Join(p.dir, volumesDir, name+recordSuffix)
}

// load brings the pool's folder into order and reads it. Nobody else has the
// pool yet, so it holds no lock.
func (p *Pool) load(ctx context.Context) error {
	if err := p.identify(); err != nil {
		return err
	}
	for _, sub := range []string{imagesDir, volumesDir} {
		if err := os.Mkdir(filepath.Join(p.dir, sub), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := p.host.SyncDir(p.dir); err != nil {
		return err
	}
	if err := p.removeTemporary(); err != nil {
		return err
	}
	names, err := p.names()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	if err := p.freeStale(ctx); err != nil {
		logger.Error(err, "devices of deleted images stay")
	}
	for _, name := range names {
		if err := p.reload(name); err != nil {
			logger.Error(err, "volume left alone", "volumeID", p.id(name))
		}
	}
	if err := p.loadCount(); err != nil {
		return err
	}
	for _, name := range names {
		if err := p.finish(ctx, name); err != nil {
			// One volume must not keep the others from being served; the next
			// Create or Delete of it tries again.
			logger.Error(err, "volume not brought into order", "volumeID", p.id(name))
		}
	}
	return nil
}

// identify reads pool.json, or writes it in a folder that has no volumes, and
// holds it against the anchor. The anchor is written last: a crash before leaves
// a pool that is found at the next start.
func (p *Pool) identify() error {
	file := filepath.Join(p.dir, "pool.json")
	found, err := readIdentity(file)
	if err != nil {
		return err
	}
	expected := ""
	if p.anchor != "" {
		if expected, err = readIdentity(p.anchor); err != nil {
			return err
		}
	}
	switch {
	case found == expected && found != "":
		p.uuid = found
		return nil
	case expected != "" && found == "":
		return fmt.Errorf("the folder holds no pool, but pool %s belongs there: mount its disk, or remove %s to begin a new pool",
			expected, p.anchor)
	case expected != "":
		return fmt.Errorf("the folder holds pool %s, but pool %s belongs there: mount the right disk, or remove %s to use this one",
			found, expected, p.anchor)
	case found == "":
		if names, err := p.names(); err != nil || len(names) > 0 {
			return errors.Join(fmt.Errorf("%s is missing although there are %d volumes; restore it", file, len(names)), err)
		}
		found = uuid.NewString()
		if err := p.write(file, identity{Version: layoutVersion, UUID: found}); err != nil {
			return err
		}
	}
	p.uuid = found
	if p.anchor == "" {
		return nil
	}
	return p.write(p.anchor, identity{Version: layoutVersion, UUID: found})
}

// readIdentity gives the UUID in a file, "" where there is no file.
func readIdentity(file string) (string, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var id identity
	if err := json.Unmarshal(content, &id); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	if id.Version != layoutVersion || id.UUID == "" {
		return "", fmt.Errorf("%s: version %d, uuid %q: want version %d and a uuid", file, id.Version, id.UUID, layoutVersion)
	}
	return id.UUID, nil
}

// removeTemporary removes what ReplaceFile left when it was cut short. No name
// of a volume begins with a dot.
func (p *Pool) removeTemporary() error {
	for _, dir := range []string{p.dir, filepath.Join(p.dir, volumesDir)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") && strings.HasSuffix(e.Name(), ".tmp") {
				if err := p.host.RemoveFile(filepath.Join(dir, e.Name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// freeStale frees the devices of images that were deleted under them. Nobody can
// attach or delete such an image any more, so nobody else would.
func (p *Pool) freeStale(ctx context.Context) error {
	loops, err := p.host.LoopsUnder(p.imagesDir())
	for _, l := range loops {
		if l.FileGone {
			err = errors.Join(err, p.host.DetachLoop(ctx, l.File))
		}
	}
	return err
}

// names lists the volumes that have a record file, sorted.
func (p *Pool) names() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, volumesDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && !strings.HasPrefix(name, ".") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

func (p *Pool) write(file string, v any) error {
	content, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.host.ReplaceFile(file, append(content, '\n'))
}

func (p *Pool) id(name string) string {
	return volume.ID{Pool: p.uuid, Name: name}.String()
}

// checkName refuses what is no file name of ours before it becomes a path.
func (p *Pool) checkName(name string) error {
	if _, err := volume.ParseID(p.id(name)); err != nil {
		return fmt.Errorf("%w: %q is no name of a volume", pool.ErrNotFound, name)
	}
	return nil
}
