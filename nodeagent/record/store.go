// Package record keeps what the node agent did to volumes, so that it can be
// undone after a crash, a reboot, or the loss of every API object. There is one
// file per volume; a change is durable before Update returns.
//
// A file that cannot be read is kept aside and said so; the agent never guesses
// what it may have held.
package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"

	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

const (
	suffix = ".json"
	// asideSuffix ends the names of files that could not be read.
	asideSuffix = ".unreadable"
)

// Store is the record of a node. It is safe for concurrent use; changes of one
// volume are made one after another.
type Store struct {
	dir  string
	boot string

	mu sync.Mutex
	// volumes are as on disk. Values are never changed, only replaced. Guarded by mu.
	volumes map[volume.Key]plan.Record
	// suspect are the volumes whose file may differ from volumes, after a write
	// that failed. Guarded by mu.
	suspect map[volume.Key]bool
	// busy are the volumes whose file is being written. Guarded by mu.
	busy map[volume.Key]chan struct{}
}

// Aside is a file that Open could not read and put aside.
type Aside struct {
	Path string
	Err  error
}

// Open reads the record in dir, which it makes if it is missing. boot
// identifies the present boot of the machine: what an earlier boot did is
// uncertain, since no mount outlives a boot.
func Open(dir, boot string) (*Store, []Aside, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("opening the volume record: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the volume record: %w", err)
	}
	s := &Store{dir: dir, boot: boot, volumes: make(map[volume.Key]plan.Record), suspect: make(map[volume.Key]bool), busy: make(map[volume.Key]chan struct{})}
	var asides []Aside
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case isTemp(e.Name()):
			// A write that a crash cut off: its name was never given.
			if err := os.Remove(path); err != nil {
				return nil, nil, fmt.Errorf("opening the volume record: %w", err)
			}
		case !strings.HasSuffix(e.Name(), suffix):
		default:
			if err := s.load(path); err != nil {
				asides = append(asides, Aside{Path: path + asideSuffix, Err: err})
				if err := os.Rename(path, path+asideSuffix); err != nil {
					return nil, nil, fmt.Errorf("putting an unreadable record aside: %w", err)
				}
			}
		}
	}
	return s, asides, nil
}

func (s *Store) load(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	r, boot, err := decode(data)
	if err != nil {
		return err
	}
	if name := fileName(r.Key); name != filepath.Base(path) {
		return fmt.Errorf("holds volume %s, whose record is named %s", r.Key, name)
	}
	if boot != s.boot {
		r = afterReboot(r)
	}
	s.volumes[r.Key] = r
	return nil
}

// afterReboot takes back every certainty that a reboot ends. Custody stays:
// whether the processes of a pod are gone is the runtime's to say.
func afterReboot(r plan.Record) plan.Record {
	doubt := func(e *plan.Effect) {
		if e.State == plan.Done {
			e.BecomeUncertain(e.Path)
		}
	}
	doubt(&r.Stage)
	for uid, p := range r.Pods {
		doubt(&p.Publish)
		r.Pods[uid] = p
	}
	return r
}

// Get returns the record of a volume; an empty one if there is none.
func (s *Store) Get(key volume.Key) plan.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get(key)
}

// get needs mu.
func (s *Store) get(key volume.Key) plan.Record {
	r, ok := s.volumes[key]
	if !ok {
		return plan.Record{Key: key, Pods: map[string]plan.PodRecord{}}
	}
	r.Pods = maps.Clone(r.Pods)
	return r
}

// Keys are the volumes that have a record, in no order.
func (s *Store) Keys() []volume.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]volume.Key, 0, len(s.volumes))
	for k := range s.volumes {
		keys = append(keys, k)
	}
	return keys
}

// Holding are the volumes whose record names the pod, in no order.
func (s *Store) Holding(podUID string) []volume.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []volume.Key
	for k, r := range s.volumes {
		if _, ok := r.Pods[podUID]; ok {
			keys = append(keys, k)
		}
	}
	return keys
}

// Update changes the record of a volume. When it returns nil the change is
// durable; when it returns an error the record is what it was before, in memory,
// and on disk one or the other. change works on a copy; its error cancels the
// update and is returned as it is. A record that becomes empty is removed.
func (s *Store) Update(key volume.Key, change func(*plan.Record) error) error {
	release := s.acquire(key)
	defer release()
	before := s.Get(key)
	r := s.Get(key)
	if err := change(&r); err != nil {
		return err
	}
	if reflect.DeepEqual(before, r) && !s.isSuspect(key) {
		return nil
	}
	if err := s.write(key, r); err != nil {
		s.mu.Lock()
		s.suspect[key] = true
		s.mu.Unlock()
		return err
	}
	return nil
}

func (s *Store) isSuspect(key volume.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspect[key]
}

// write makes r durable, and then what Get returns.
func (s *Store) write(key volume.Key, r plan.Record) error {
	path := filepath.Join(s.dir, fileName(key))
	if r.Empty() {
		err := os.Remove(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the record of volume %s: %w", key, err)
		}
		// Not durable until later is harmless: a record that comes back
		// after a power loss asks for an inverse call on what is gone.
		s.put(key, nil)
		return nil
	}
	data, err := encode(r, s.boot)
	if err != nil {
		return fmt.Errorf("recording volume %s: %w", key, err)
	}
	if err := WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("recording volume %s: %w", key, err)
	}
	s.put(key, &r)
	return nil
}

func (s *Store) put(key volume.Key, r *plan.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.suspect, key)
	if r == nil {
		delete(s.volumes, key)
	} else {
		s.volumes[key] = *r
	}
}

// acquire waits for the turn to change a volume. Writes of different volumes
// run in parallel: each waits for the disk.
func (s *Store) acquire(key volume.Key) (release func()) {
	for {
		s.mu.Lock()
		other, busy := s.busy[key]
		if !busy {
			mine := make(chan struct{})
			s.busy[key] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, key)
				s.mu.Unlock()
				close(mine)
			}
		}
		s.mu.Unlock()
		<-other
	}
}

// fileName is safe whatever the driver chose as handle.
func fileName(key volume.Key) string {
	sum := sha256.Sum256([]byte(key.String()))
	return hex.EncodeToString(sum[:]) + suffix
}
