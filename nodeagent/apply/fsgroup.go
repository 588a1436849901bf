package apply

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Bits that a pod's group gets: read and write on files, search as well on
// folders, and setgid there, so that new files belong to the group too
// (kubelet, pkg/volume/volume_linux.go).
const (
	groupFileBits fs.FileMode = 0o660
	groupDirBits  fs.FileMode = 0o110
)

// giveToGroup gives all files of the volume at root to gid. The root itself
// comes last: as long as it is not changed, an interrupted walk is seen to be
// unfinished. Names are resolved inside the volume only, so that a link made
// by another pod that writes to the volume cannot lead the walk out of it.
func giveToGroup(root string, gid int64, onlyIfRootDiffers bool) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("giving the volume to group %d: %w", gid, err)
	}
	defer dir.Close()
	if onlyIfRootDiffers {
		info, err := dir.Stat(".")
		if err != nil {
			return fmt.Errorf("giving the volume to group %d: %w", gid, err)
		}
		if belongs(info, gid) {
			return nil
		}
	}
	err = fs.WalkDir(dir.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return give(dir, path, info, gid)
	})
	if err == nil {
		var info fs.FileInfo
		if info, err = dir.Stat("."); err == nil {
			err = give(dir, ".", info, gid)
		}
	}
	if err != nil {
		return fmt.Errorf("giving the volume to group %d: %w", gid, err)
	}
	return nil
}

func give(dir *os.Root, path string, info fs.FileInfo, gid int64) error {
	if belongs(info, gid) {
		return nil
	}
	if err := dir.Lchown(path, -1, int(gid)); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // a link has no mode of its own
	}
	return dir.Chmod(path, info.Mode()|wantedBits(info))
}

// belongs reports that nothing is left to do for a file.
func belongs(info fs.FileInfo, gid int64) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int64(stat.Gid) != gid {
		return false
	}
	want := wantedBits(info)
	return info.Mode()&fs.ModeSymlink != 0 || info.Mode()&want == want
}

func wantedBits(info fs.FileInfo) fs.FileMode {
	if info.IsDir() {
		return groupFileBits | groupDirBits | fs.ModeSetgid
	}
	return groupFileBits
}
