package loopfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-storage/berth/driver/pool"
)

// state is where a volume stands in its life.
type state string

const (
	// creating: the image may be missing, short or whole; nobody was told of
	// the volume.
	creating state = "creating"
	// ready: the image is whole and belongs to somebody.
	ready state = "ready"
	// deleting: the image is worthless and may be gone.
	deleting state = "deleting"
)

// record is the content of volumes/<name>.json.
type record struct {
	Version    int    `json:"version"`
	State      state  `json:"state"`
	Size       int64  `json:"size"`
	FSType     string `json:"fsType,omitempty"`
	Allocation int64  `json:"allocation"`
	Formatted  bool   `json:"formatted,omitempty"`
}

func (r record) volume(name string) pool.Volume {
	return pool.Volume{Name: name, Size: r.Size, FSType: r.FSType, Allocation: r.Allocation, Formatted: r.Formatted}
}

// becomeReady: the image holds Size bytes.
func (r record) becomeReady() record {
	r.State = ready
	return r
}

// becomeDeleting: the owner gave the volume up.
func (r record) becomeDeleting() record {
	r.State = deleting
	return r
}

// reload takes a volume's record from the disk, which alone is true after a
// call that failed half-way. A volume that nobody else may touch is a
// *pool.DamagedError. It needs mu.
func (p *Pool) reload(name string) error {
	content, err := os.ReadFile(p.recordFile(name))
	if errors.Is(err, os.ErrNotExist) {
		delete(p.records, name)
		return nil
	}
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		return &pool.DamagedError{Name: name, Problem: fmt.Sprintf("its record %s: %v", p.recordFile(name), err)}
	}
	if r.Version != layoutVersion || r.State != creating && r.State != ready && r.State != deleting {
		return &pool.DamagedError{Name: name, Problem: fmt.Sprintf("its record %s: version %d and state %q are not known",
			p.recordFile(name), r.Version, r.State)}
	}
	p.records[name] = r
	return nil
}

// save writes a volume's record durably. After an error the disk may have it or
// not; the next reload sees. It needs mu.
func (p *Pool) save(name string, r record) error {
	r.Version = layoutVersion
	if err := p.write(p.recordFile(name), r); err != nil {
		return errors.Join(err, p.reload(name))
	}
	p.records[name] = r
	return nil
}

// found is the ready record of a volume; ErrNotFound for any other. It needs mu.
func (p *Pool) found(name string) (record, error) {
	if err := p.checkName(name); err != nil {
		return record{}, err
	}
	if err := p.reload(name); err != nil {
		return record{}, err
	}
	r, ok := p.records[name]
	if !ok || r.State != ready {
		return record{}, pool.ErrNotFound
	}
	return r, nil
}

// countStep is how many allocations one write of allocations.json covers.
const countStep = 256

// counter is the content of allocations.json.
type counter struct {
	Version int   `json:"version"`
	Promise int64 `json:"promise"`
}

// loadCount continues the count where no earlier process can have been: a
// process may have used everything up to its promise.
func (p *Pool) loadCount() error {
	file := p.countFile()
	content, err := os.ReadFile(file)
	var c counter
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w", file, err)
	}
	p.promise = c.Promise
	for _, r := range p.records {
		p.promise = max(p.promise, r.Allocation)
	}
	p.count = p.promise
	return nil
}

func (p *Pool) countFile() string { return filepath.Join(p.dir, "allocations.json") }

// nextCount counts one allocation. Its number is promised durably before
// anybody can see it. It needs mu.
func (p *Pool) nextCount() (int64, error) {
	if p.count == p.promise {
		promise := p.promise + countStep
		if err := p.write(p.countFile(), counter{Version: layoutVersion, Promise: promise}); err != nil {
			return 0, fmt.Errorf("counting allocations: %w", err)
		}
		p.promise = promise
	}
	p.count++
	return p.count, nil
}
