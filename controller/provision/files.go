package provision

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/apimachinery/pkg/types"
)

// Files is the part of host.Interface that makes a record durable.
type Files interface {
	// ReplaceFile writes a file so that after a crash it is there whole, old or
	// new.
	ReplaceFile(file string, content []byte) error
	// RemoveFile removes a file durably; no error if there is none.
	RemoveFile(file string) error
}

// fileVersion is the format of the files. A file of another version is not
// acted upon.
const fileVersion = 1

const fileSuffix = ".json"

// fileRecords keeps one file per claim UID.
type fileRecords struct {
	dir   string
	files Files
}

// NewFileRecords keeps the records in dir, one file per claim, and makes dir.
func NewFileRecords(dir string, files Files) (Records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of provisioning records: %w", err)
	}
	return &fileRecords{dir: dir, files: files}, nil
}

// recordFile is the content of a file.
type recordFile struct {
	Version   int             `json:"version"`
	Namespace string          `json:"claimNamespace"`
	Name      string          `json:"claimName"`
	UID       types.UID       `json:"claimUID"`
	State     State           `json:"state"`
	Request   json.RawMessage `json:"request"`
	VolumeID  string          `json:"volumeID,omitempty"`
}

func (f *fileRecords) Get(uid types.UID) (Record, bool, error) {
	path, err := f.path(uid)
	if err != nil {
		return Record{}, false, err
	}
	return read(path)
}

func (f *fileRecords) Put(r Record) error {
	if err := r.Validate(); err != nil {
		return err
	}
	path, err := f.path(r.ClaimUID)
	if err != nil {
		return err
	}
	request, err := protojson.Marshal(r.Request)
	if err != nil {
		return fmt.Errorf("encoding the record of claim %s: %w", r.ClaimUID, err)
	}
	content, err := json.Marshal(recordFile{
		Version: fileVersion, Namespace: r.Claim.Namespace, Name: r.Claim.Name,
		UID: r.ClaimUID, State: r.State, Request: request, VolumeID: r.VolumeID,
	})
	if err != nil {
		return fmt.Errorf("encoding the record of claim %s: %w", r.ClaimUID, err)
	}
	if err := f.files.ReplaceFile(path, content); err != nil {
		return fmt.Errorf("writing the record of claim %s: %w", r.ClaimUID, err)
	}
	return nil
}

func (f *fileRecords) Drop(uid types.UID) error {
	path, err := f.path(uid)
	if err != nil {
		return err
	}
	if err := f.files.RemoveFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the record of claim %s: %w", uid, err)
	}
	return nil
}

func (f *fileRecords) List() ([]Record, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("reading the folder of provisioning records: %w", err)
	}
	var all []Record
	var bad []error
	for _, e := range entries {
		// Names of another form are remains of a replacement that was cut off.
		if !strings.HasSuffix(e.Name(), fileSuffix) || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		r, ok, err := read(filepath.Join(f.dir, e.Name()))
		switch {
		case err != nil:
			bad = append(bad, err)
		case ok:
			all = append(all, r)
		}
	}
	return all, errors.Join(bad...)
}

// path is the file of a claim. UIDs come from the API server, but a path is
// built of one: nothing that could leave the folder is taken.
func (f *fileRecords) path(uid types.UID) (string, error) {
	if uid == "" || strings.HasPrefix(string(uid), ".") || strings.ContainsAny(string(uid), "/\x00") {
		return "", fmt.Errorf("claim UID %q cannot name a record", uid)
	}
	return filepath.Join(f.dir, string(uid)+fileSuffix), nil
}

func read(path string) (Record, bool, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("reading a provisioning record: %w", err)
	}
	var in recordFile
	if err := json.Unmarshal(content, &in); err != nil {
		return Record{}, false, fmt.Errorf("decoding %s: %w", path, err)
	}
	if in.Version != fileVersion {
		return Record{}, false, fmt.Errorf("decoding %s: version %d, want %d", path, in.Version, fileVersion)
	}
	request := &csi.CreateVolumeRequest{}
	if err := protojson.Unmarshal(in.Request, request); err != nil {
		return Record{}, false, fmt.Errorf("decoding the request in %s: %w", path, err)
	}
	r := Record{
		Claim:    types.NamespacedName{Namespace: in.Namespace, Name: in.Name},
		ClaimUID: in.UID, State: in.State, Request: request, VolumeID: in.VolumeID,
	}
	if r.ClaimUID != types.UID(strings.TrimSuffix(filepath.Base(path), fileSuffix)) {
		return Record{}, false, fmt.Errorf("decoding %s: it is the record of claim %s", path, r.ClaimUID)
	}
	if err := r.Validate(); err != nil {
		return Record{}, false, fmt.Errorf("decoding %s: %w", path, err)
	}
	return r, true, nil
}
