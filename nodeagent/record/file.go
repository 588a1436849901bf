package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	tempPrefix = "."
	tempSuffix = ".tmp"
)

// TempName is the file beside path that WriteFile writes first. A crash can
// leave it, so whoever removes path's folder removes it too.
func TempName(path string) string {
	return filepath.Join(filepath.Dir(path), tempPrefix+filepath.Base(path)+tempSuffix)
}

// isTemp reports whether a file name is one that TempName gives.
func isTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}

// WriteFile replaces a file so that after a crash there is the old content or
// the new, never a part: a temporary file in the same folder is written and
// synced, renamed, and the folder synced. Two writers of one path at once are
// not allowed.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.OpenFile(TempName(path), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		// The file may be an older writer's, and the umask may be narrow.
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(f.Name())))
	}
	return SyncDir(dir)
}

// SyncDir makes the names in a folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
