package host

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// mountFlag is what an option of mount(8) does to the flags of mount(2).
type mountFlag struct {
	clear bool
	flag  uintptr
}

// flagOf knows the options that are flags; any other is passed to the filesystem.
func flagOf(option string) (mountFlag, bool) {
	switch option {
	case "defaults", "async", "auto", "noauto", "nofail", "_netdev":
		return mountFlag{}, true
	case "ro":
		return mountFlag{flag: unix.MS_RDONLY}, true
	case "rw":
		return mountFlag{clear: true, flag: unix.MS_RDONLY}, true
	case "nosuid":
		return mountFlag{flag: unix.MS_NOSUID}, true
	case "suid":
		return mountFlag{clear: true, flag: unix.MS_NOSUID}, true
	case "nodev":
		return mountFlag{flag: unix.MS_NODEV}, true
	case "dev":
		return mountFlag{clear: true, flag: unix.MS_NODEV}, true
	case "noexec":
		return mountFlag{flag: unix.MS_NOEXEC}, true
	case "exec":
		return mountFlag{clear: true, flag: unix.MS_NOEXEC}, true
	case "sync":
		return mountFlag{flag: unix.MS_SYNCHRONOUS}, true
	case "dirsync":
		return mountFlag{flag: unix.MS_DIRSYNC}, true
	case "noatime":
		return mountFlag{flag: unix.MS_NOATIME}, true
	case "atime":
		return mountFlag{clear: true, flag: unix.MS_NOATIME}, true
	case "nodiratime":
		return mountFlag{flag: unix.MS_NODIRATIME}, true
	case "diratime":
		return mountFlag{clear: true, flag: unix.MS_NODIRATIME}, true
	case "relatime":
		return mountFlag{flag: unix.MS_RELATIME}, true
	case "norelatime":
		return mountFlag{clear: true, flag: unix.MS_RELATIME}, true
	case "strictatime":
		return mountFlag{flag: unix.MS_STRICTATIME}, true
	case "lazytime":
		return mountFlag{flag: unix.MS_LAZYTIME}, true
	case "nosymfollow":
		return mountFlag{flag: unix.MS_NOSYMFOLLOW}, true
	}
	return mountFlag{}, false
}

// parseMountOptions splits options into the flags and the data of mount(2). A
// later option wins over an earlier one. Options that would make another kind
// of mount out of it are refused.
func parseMountOptions(options []string) (flags uintptr, data string, err error) {
	var rest []string
	for _, o := range options {
		switch o {
		case "":
			continue
		case "bind", "rbind", "remount", "move", "shared", "rshared", "slave", "rslave",
			"private", "rprivate", "unbindable", "runbindable", "loop":
			return 0, "", fmt.Errorf("mount option %q: it makes another kind of mount and is not allowed here", o)
		}
		if strings.HasPrefix(o, "x-") {
			continue // for programs that read fstab, not for the kernel
		}
		f, known := flagOf(o)
		switch {
		case !known:
			rest = append(rest, o)
		case f.clear:
			flags &^= f.flag
		default:
			flags |= f.flag
		}
	}
	return flags, strings.Join(rest, ","), nil
}

// keptByRemount are the flags of a mount, read from the mount table, that a bind
// remount must repeat, since it replaces them all (mount(2), MS_REMOUNT|MS_BIND).
func keptByRemount(options string) uintptr {
	var flags uintptr
	for o := range strings.SplitSeq(options, ",") {
		switch o {
		case "nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime", "nosymfollow":
			f, _ := flagOf(o)
			flags |= f.flag
		}
	}
	return flags
}
