package sandbox

import (
	"context"
	"fmt"
)

// ExtenderScheduler is the process of the stock kube-scheduler that asks
// berth-extender, with Options.Extender.
const ExtenderScheduler = "berth-extender-scheduler"

// schedulerName is the program that schedules by volumes, and by its name the
// scheduler that pods ask for.
func (o Options) schedulerName() string {
	if o.Extender {
		return "berth-extender"
	}
	return "berth-scheduler"
}

// SchedulerName is the spec.schedulerName of pods that are to be placed by where
// their volumes can live.
func (c *Cluster) SchedulerName() string { return c.options.schedulerName() }

// ExtenderHTTP is the URL that berth-extender's /healthz, /readyz and /metrics lie
// under.
func (c *Cluster) ExtenderHTTP() string { return "http://" + loopback(c.ports.extenderHTTP) }

// startExtender starts berth-extender, and then the kube-scheduler that asks it: an
// unmodified one, with nothing of Berth but its configuration. Both have the rights
// that are shipped, and stand for the containers of one pod.
func (c *Cluster) startExtender(ctx context.Context) error {
	name := c.SchedulerName()
	kubeconfig, err := c.componentConfig(ctx, name)
	if err != nil {
		return err
	}
	p, err := c.launch(name, gracePlain, c.program(name),
		"--kubeconfig="+kubeconfig, "--kube-api-qps=200", "--kube-api-burst=400",
		"--serve-address="+loopback(c.ports.extender), "--http-address="+loopback(c.ports.extenderHTTP),
		// The one scheduler elects no leader: setConnection.
		"--scheduler-name="+name, "--leader-lease=", "-v=2")
	if err != nil {
		return err
	}
	if err := p.await(ctx, healthy(c.ExtenderHTTP()+"/readyz/caches")); err != nil {
		return err
	}
	config, err := shippedExtenderConfig(kubeconfig, loopback(c.ports.extender), !c.options.has(StockScheduler))
	if err != nil {
		return err
	}
	return c.runScheduler(ctx, ExtenderScheduler, config, c.ports.scheduler, c.program("berth-sandbox"), "kube-scheduler",
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig, "--v=2")
}

// shippedExtenderConfig is the shipped configuration of the kube-scheduler that asks
// the extender, with the sandbox's kubeconfig and the extender's address there.
func shippedExtenderConfig(kubeconfig, address string, alone bool) (map[string]any, error) {
	config, err := shippedSchedulerConfig(extenderConfigFile, kubeconfig, alone)
	if err != nil {
		return nil, err
	}
	extenders, ok := config["extenders"].([]any)
	if !ok || len(extenders) != 1 {
		return nil, fmt.Errorf("manifests/%s: want one extender", extenderConfigFile)
	}
	entry, ok := extenders[0].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("manifests/%s: the extender is no mapping", extenderConfigFile)
	}
	entry["urlPrefix"] = "http://" + address
	return config, nil
}
