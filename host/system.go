package host

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// Options say where the real host's tools are.
type Options struct {
	// Root is where the host's root filesystem is seen, for a process in a
	// container; "" and "/" mean that the process already runs on it. Tools
	// run chrooted into it. Devices and mount points have the same paths
	// inside and outside of it.
	Root string
}

// System is the machine itself. Its zero value is not usable; see New. All
// methods may be called concurrently.
type System struct {
	root string
	// configure gives an open loop device its file.
	configure func(dev, back *os.File) error
	// patience is how long DetachLoop waits for others to leave a device.
	patience time.Duration

	// loopMu keeps two attaches of one file from each making a device: the
	// kernel allows several for one file.
	loopMu sync.Mutex
}

var _ Host = (*System)(nil)

// New gives the real host. It needs root (CAP_SYS_ADMIN) and does nothing yet.
func New(o Options) *System {
	root := o.Root
	if root == "" {
		root = "/"
	}
	return &System{root: root, configure: configureLoop, patience: detachPatience}
}

// toolMissingError is a tool that the host lacks.
type toolMissingError struct {
	tool, root string
}

func (e *toolMissingError) Error() string {
	return fmt.Sprintf("%s is not installed under %s; install package %s there", e.tool, e.root, packageOf(e.tool))
}

// packageOf names the package that holds a tool, as most distributions call it.
func packageOf(tool string) string {
	switch tool {
	case "mkfs.xfs", "xfs_growfs":
		return "xfsprogs"
	case "blkid":
		return "util-linux"
	default:
		return "e2fsprogs"
	}
}
