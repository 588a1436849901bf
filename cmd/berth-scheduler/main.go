// berth-scheduler is kube-scheduler with the plugin BerthVolumes. It takes
// kube-scheduler's flags and configuration; see manifests/base/scheduler-config.yaml.
// Beside it, the replica that holds the Lease berth-cluster does the work of
// controller/cluster.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-storage/berth/scheduler/plugin"
)

func main() {
	beside := newClusterWork()
	command := app.NewSchedulerCommand(app.WithPlugin(plugin.Name, beside.startedBy(new(plugin.Factory).New)))
	command.Use = "berth-scheduler"
	beside.addFlags(command)
	code := cli.Run(command)
	beside.wait()
	os.Exit(code)
}
