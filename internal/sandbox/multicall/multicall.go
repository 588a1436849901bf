// Package multicall holds Kubernetes' and etcd's own programs, each as one
// subcommand, so that one binary can be every process of a control plane.
//
// It is the heaviest import of the whole module. Only cmd/berth-sandbox imports
// it; everything else asks for these programs by name and runs the binary.
package multicall

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's login plugins
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register" // the JSON log format
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// Names of the programs, as first argument of the binary.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubectl           = "kubectl"
)

// Run becomes the program that args[0] names, with the rest as its arguments,
// and returns its exit status; ok is false when args names none of them. It
// sets os.Args to args, since these programs read it in several places.
func Run(args []string) (status int, ok bool) {
	if len(args) == 0 {
		return 0, false
	}
	var program func() int
	switch args[0] {
	case Etcd:
		program = func() int { etcdmain.Main(args); return 0 } // ends the process itself
	case APIServer:
		program = func() int { return cli.Run(apiserver.NewAPIServerCommand()) }
	case ControllerManager:
		program = func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) }
	case Scheduler:
		program = func() int { return cli.Run(scheduler.NewSchedulerCommand()) }
	case Kubectl:
		program = runKubectl
	default:
		return 0, false
	}
	os.Args = args
	return program(), true
}

// runKubectl does what kubectl's own main does; it ends the process itself on
// an error.
func runKubectl() int {
	// The flag is parsed again, and judged, by the command itself.
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
	return 0
}
