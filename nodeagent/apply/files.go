package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/nodeagent/record"
)

// dirMode is the kubelet's for everything around CSI mounts.
const dirMode fs.FileMode = 0o750

// volData is the file beside a mount that says whose it is, as the kubelet
// writes and reads it (csi_util.go, csi_mounter.go).
type volData struct {
	SpecVolID           string `json:"specVolID,omitempty"`
	VolumeHandle        string `json:"volumeHandle"`
	DriverName          string `json:"driverName"`
	NodeName            string `json:"nodeName,omitempty"`
	AttachmentID        string `json:"attachmentID,omitempty"`
	VolumeLifecycleMode string `json:"volumeLifecycleMode,omitempty"`
}

func writeVolData(dir string, d volData) error {
	data, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("writing %s: %w", plan.DataFile, err)
	}
	if err := record.WriteFile(filepath.Join(dir, plan.DataFile), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", plan.DataFile, err)
	}
	return nil
}

// inside refuses a path outside of the root: a record is a file, and files can
// be damaged.
func (r *Runner) inside(path string) error {
	if path != filepath.Clean(path) || !strings.HasPrefix(path, filepath.Clean(r.cfg.Root)+"/") {
		return fmt.Errorf("path %q is not inside %s", path, r.cfg.Root)
	}
	return nil
}

func makeDir(path string) error {
	if err := os.MkdirAll(path, dirMode); err != nil {
		return fmt.Errorf("making folder %s: %w", path, err)
	}
	return nil
}

// removeStaging removes what stage made, after the driver let go of it.
func (r *Runner) removeStaging(staging string, block bool) error {
	if err := remove(staging); err != nil {
		return err
	}
	if block {
		return nil
	}
	dir := filepath.Dir(staging)
	if err := removeVolData(dir); err != nil {
		return err
	}
	return remove(dir)
}

// removeTarget removes a publication's target, its file, and the folders above
// it that are empty then, up to the pods folder.
func (r *Runner) removeTarget(target string, block bool) error {
	if err := remove(target); err != nil {
		return err
	}
	dir := filepath.Dir(target)
	if block {
		return removeIfEmpty(dir)
	}
	if err := removeVolData(dir); err != nil {
		return err
	}
	if err := remove(dir); err != nil {
		return err
	}
	pods := filepath.Join(filepath.Clean(r.cfg.Root), "pods")
	for dir = filepath.Dir(dir); dir != pods && strings.HasPrefix(dir, pods); dir = filepath.Dir(dir) {
		if err := removeIfEmpty(dir); err != nil {
			return err
		}
	}
	return nil
}

// removeVolData removes what writeVolData made, also where a crash cut it short.
func removeVolData(dir string) error {
	file := filepath.Join(dir, plan.DataFile)
	if err := remove(record.TempName(file)); err != nil {
		return err
	}
	return remove(file)
}

// remove takes away one file or empty folder. It never descends: below a mount
// point that was overlooked lies somebody's data.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}

// removeIfEmpty leaves a folder that holds something (ENOTEMPTY counts as
// fs.ErrExist): other volumes of the pod, or what the runtime keeps there.
func removeIfEmpty(path string) error {
	if err := remove(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
