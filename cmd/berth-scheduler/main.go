// berth-scheduler is kube-scheduler with the plugin BerthVolumes. It takes
// kube-scheduler's flags and configuration; see manifests/base/scheduler-config.yaml.
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
	command := app.NewSchedulerCommand(app.WithPlugin(plugin.Name, new(plugin.Factory).New))
	command.Use = "berth-scheduler"
	os.Exit(cli.Run(command))
}
