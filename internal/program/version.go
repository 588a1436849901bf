// Package program is what every program of Berth says and obeys, be it a daemon
// or a command: its version, and signals.
package program

import (
	"fmt"
	"runtime"

	"github.com/spf13/pflag"
	kubeversion "k8s.io/component-base/version"
)

// version is Berth's own, set by the linker (see the Makefile).
var version = "v0.0.0-dev"

// Version is Berth's version.
func Version() string { return version }

// KubernetesVersion is the version of the Kubernetes that Berth is built from.
// Kubernetes' own components judge by it what they are compatible with.
func KubernetesVersion() string { return kubeversion.Get().GitVersion }

// VersionText is what --version says behind the program's name.
func VersionText() string {
	return fmt.Sprintf("%s (Kubernetes %s, %s, %s/%s)", Version(), KubernetesVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// AddVersionFlag puts --version, which cobra acts on, into a group of the help.
func AddVersionFlag(fs *pflag.FlagSet) {
	fs.Bool("version", false, "Print Berth's version and that of the Kubernetes it is built from.")
}
