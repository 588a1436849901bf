// Package host is the only door from Berth to the machine: it mounts, makes
// loop devices, formats, grows filesystems and runs the host's tools. No other
// room imports os/exec, x/sys/unix or mount-utils.
//
// New gives the real host; NewFake gives one in memory, whose n-th call can be
// made to fail before or after its effect. Both pass the conformance suite in
// host/hosttest.
//
// Mounts are system calls. Filesystem tools (mkfs, blkid, fsck, resize) are the
// host's own, run under Options.Root, so that mkfs never makes a filesystem
// that the host's kernel cannot mount. State is read from
// /proc/self/mountinfo and /sys, never from the output of a tool.
package host

import (
	"context"
	"errors"
)

// ErrLocked is the error of LockFile for a file that somebody else holds.
var ErrLocked = errors.New("locked by another process")

// ErrNotEmpty is the error of Format for a device on which Probe finds something.
var ErrNotEmpty = errors.New("the device is not empty")

// Host is everything that Berth may do to a machine. A room asks for the part
// that it needs; the whole is for wiring and for the conformance suite.
type Host interface {
	Mounts
	Loops
	Filesystems
	Files
}

// MountPoint is one row of the mount table.
type MountPoint struct {
	// Target is where it is mounted, an absolute clean path.
	Target string
	// Source is what is mounted: a device, or the filesystem's own word.
	Source string
	// Root is the folder of the filesystem that Target shows; not "/" for a
	// bind mount of a folder or file.
	Root string
	// Device is major:minor.
	Device string
	// FSType is the filesystem's type.
	FSType string
	// ReadOnly is the mount's own flag, not the filesystem's.
	ReadOnly bool
}

// Mounts changes and reads the mount table.
type Mounts interface {
	// MountFilesystem mounts a device at an existing folder. Options are those
	// of mount(8): ro, noatime, …, or the filesystem's own. A target that
	// already shows this device is success; one that shows another is an error.
	MountFilesystem(ctx context.Context, device, target, fstype string, options []string) error

	// BindMount shows source (a folder, a file or a device node) at target,
	// which exists and is of the same kind. readOnly is enforced by the kernel
	// for this mount alone; a source that is itself read-only stays so. A target
	// that already shows source in the same way is success, one that shows
	// it writable becomes read-only where that is asked (a call that was cut
	// short ends so), and any other mount there is an error.
	BindMount(ctx context.Context, source, target string, readOnly bool) error

	// Unmount takes away every mount stacked at target. Nothing mounted there,
	// or no such path, is success. A busy mount is an error that satisfies
	// errors.Is(err, syscall.EBUSY); it is never detached lazily, since that
	// would hide data still being written.
	Unmount(ctx context.Context, target string) error

	// MountAt is the uppermost mount at target; ok is false where nothing is
	// mounted.
	MountAt(target string) (m MountPoint, ok bool, err error)

	// MountsUnder lists the mounts at prefix and below it, in mount order.
	MountsUnder(prefix string) ([]MountPoint, error)
}

// Loop is one loop device.
type Loop struct {
	// Device is its path, /dev/loopN.
	Device string
	// File is the backing file. The kernel names it as it was reached when
	// the device was made, which in another mount namespace (a container that
	// is gone) may lack the head of the path; LoopsUnder then gives the path
	// under its prefix at which it found the same inode.
	File string
	// FileGone says that the backing file was deleted under the device.
	FileGone bool
	// Size is what the device shows, in bytes.
	Size int64
}

// Loops makes files into block devices. All calls go by backing file (its
// device and inode while it exists, its name when it is gone), so that they work
// after a restart.
type Loops interface {
	// AttachLoop gives file a loop device, or returns the one that it has. The
	// device offers no discard, which would punch holes into space that
	// Allocate took; its logical block is 512 bytes, so that an image can move
	// between disks.
	AttachLoop(ctx context.Context, file string) (Loop, error)
	// LoopsUnder lists the loop devices whose backing file is prefix or lies
	// below it, deleted ones included.
	LoopsUnder(prefix string) ([]Loop, error)
	// GrowLoop makes the device show its file's present size.
	GrowLoop(ctx context.Context, device string) error
	// DetachLoop frees the devices of file. None is success; a device in use
	// is an error that satisfies errors.Is(err, syscall.EBUSY) and stays.
	DetachLoop(ctx context.Context, file string) error
}

// Usage is what statfs says of a filesystem, in bytes and inodes.
type Usage struct {
	TotalBytes, AvailableBytes, UsedBytes    int64
	TotalInodes, AvailableInodes, UsedInodes int64
}

// Filesystems makes and grows them.
type Filesystems interface {
	// Probe names what a device holds: a filesystem type, "" for nothing
	// known. Something else (a partition table, LVM) is named too, so that it is
	// never formatted over.
	Probe(ctx context.Context, device string) (string, error)
	// Format makes a filesystem on a device on which Probe finds nothing; on
	// any other it is ErrNotEmpty and changes nothing. Options go to mkfs
	// before the device.
	Format(ctx context.Context, device, fstype string, options []string) error
	// Check repairs what the filesystem's own tool repairs without asking, on
	// an unmounted device; what it would have to ask about is an error. For
	// xfs it is nothing: its log is replayed by the mount.
	Check(ctx context.Context, device, fstype string) error
	// GrowFilesystem grows a filesystem to its device's size. Nothing to grow
	// is success. mountPoint is where it is mounted, "" for nowhere: an
	// unmounted ext4 grows too, an unmounted xfs cannot and stays as it is.
	// Linux lets only CAP_SYS_RESOURCE grow a mounted ext4; without, the error
	// satisfies errors.Is(err, syscall.EPERM) and nothing has changed.
	GrowFilesystem(ctx context.Context, device, mountPoint, fstype string) error
	// Statfs reads the usage of the filesystem at path.
	Statfs(path string) (Usage, error)
}

// Files does to files what package os cannot.
type Files interface { //nolint:interfacebloat // one contract, one fake, one conformance suite; callers ask for less
	// Allocate makes file at least size bytes long, with every byte's space
	// taken from the filesystem (fallocate), durably. It creates the file with
	// mode 0600; it never shrinks one. Too little space leaves the file as it
	// was, and the error satisfies errors.Is(err, syscall.ENOSPC).
	Allocate(ctx context.Context, file string, size int64) error
	// BlockSize is the size of a block device, in bytes.
	BlockSize(device string) (int64, error)
	// ReplaceFile gives file (mode 0600) new content such that after a crash
	// at any moment it has either the old or the new: temporary file in the
	// same folder (a dot, the name, ".tmp"), fsync, rename, fsync of the
	// folder. An error leaves it open which of the two it has. Calls for one
	// file must not overlap.
	ReplaceFile(file string, content []byte) error
	// RemoveFile removes a file, never a folder, durably. No such file is success.
	RemoveFile(file string) error
	// LockFile takes an exclusive lock that ends with unlock or with the
	// process; it creates the file. It does not wait: a held lock is ErrLocked.
	LockFile(file string) (unlock func() error, err error)
	// SyncDir makes the names in a folder durable.
	SyncDir(dir string) error
}
