package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// opened is a Mount whose source is held, detached from any path.
type opened struct {
	Mount
	// tree is the descriptor of the detached mount.
	tree   int
	folder bool
}

// openMounts opens all sources; those with shorter targets come first, so that
// one may lie inside another, whatever order they were given in.
func openMounts(mounts []Mount) ([]opened, error) {
	all := make([]opened, 0, len(mounts))
	for _, m := range mounts {
		o, err := openMount(m)
		if err != nil {
			return nil, fmt.Errorf("opening the source of %s: %w", m.Target, err)
		}
		all = append(all, o)
	}
	slices.SortStableFunc(all, func(a, b opened) int {
		return depth(a.Target) - depth(b.Target)
	})
	return all, nil
}

func depth(path string) int { return strings.Count(filepath.Clean(path), "/") }

func openMount(m Mount) (opened, error) {
	source, err := openSource(m)
	if err != nil {
		return opened{}, err
	}
	defer unix.Close(source)
	var st unix.Stat_t
	if err := unix.Fstatat(source, "", &st, unix.AT_EMPTY_PATH); err != nil {
		return opened{}, fmt.Errorf("reading %s: %w", m.Source, err)
	}
	tree, err := unix.OpenTree(source, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return opened{}, fmt.Errorf("cloning the mount of %s: %w", m.Source, err)
	}
	if m.ReadOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return opened{}, fmt.Errorf("making the mount of %s read-only: %w", m.Source, err)
		}
	}
	return opened{Mount: m, tree: tree, folder: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// place mounts what was opened at its target, in the root of this process.
func (o opened) place() error {
	defer unix.Close(o.tree)
	if err := makeTarget(o.Target, o.folder); err != nil {
		return fmt.Errorf("making the mount point %s: %w", o.Target, err)
	}
	if err := unix.MoveMount(o.tree, "", unix.AT_FDCWD, o.Target, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS); err != nil {
		return fmt.Errorf("mounting at %s: %w", o.Target, err)
	}
	return nil
}

func makeTarget(target string, folder bool) error {
	if folder {
		return os.MkdirAll(target, 0o755)
	}
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// openSource opens what a Mount shows, without following links out of Source.
func openSource(m Mount) (int, error) {
	root, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening %s: %w", m.Source, err)
	}
	if m.SubPath == "" {
		return root, nil
	}
	defer unix.Close(root)
	parts := strings.Split(filepath.Clean(m.SubPath), "/")
	for i := range parts {
		fd, err := below(root, parts[:i+1])
		if err == nil {
			unix.Close(fd)
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return -1, fmt.Errorf("opening subPath %q: %w", m.SubPath, err)
		}
		if err := makeBelow(root, parts[:i], parts[i]); err != nil {
			return -1, fmt.Errorf("making subPath %q: %w", m.SubPath, err)
		}
	}
	fd, err := below(root, parts)
	if err != nil {
		return -1, fmt.Errorf("opening subPath %q: %w", m.SubPath, err)
	}
	return fd, nil
}

func makeBelow(root int, parent []string, name string) error {
	dir, err := below(root, parent)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func below(root int, parts []string) (int, error) {
	path := "."
	if len(parts) > 0 {
		path = strings.Join(parts, "/")
	}
	return unix.Openat2(root, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
}
