package main

import (
	"context"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-storage/berth/controller/cluster"
	"github.com/berth-storage/berth/volume"
)

// clusterWork runs controller/cluster beside the scheduler.
//
// kube-scheduler's command keeps its configuration, its client and its signals
// to itself. What it hands out is the plugins' context, which ends with the
// program, and their handle, which has the connection that the configuration
// names; so the making of the first plugin starts the work.
type clusterWork struct {
	enabled   bool
	namespace string

	once sync.Once
	done sync.WaitGroup
}

func newClusterWork() *clusterWork {
	return &clusterWork{enabled: true, namespace: "berth-system"}
}

// addFlags adds the flags to the command and to its help.
func (w *clusterWork) addFlags(command *cobra.Command) {
	flags := pflag.NewFlagSet("berth", pflag.ContinueOnError)
	flags.BoolVar(&w.enabled, "cluster-work", w.enabled,
		"Assign claims of classes with immediate binding to nodes, and release claims from nodes that are gone, in the replica that holds the Lease "+cluster.LeaseName+".")
	flags.StringVar(&w.namespace, "cluster-lease-namespace", w.namespace, "Namespace of the Lease "+cluster.LeaseName+".")
	command.Flags().AddFlagSet(flags)

	sections := cliflag.NamedFlagSets{Order: []string{"berth"}, FlagSets: map[string]*pflag.FlagSet{"berth": flags}}
	help, usage := command.HelpFunc(), command.UsageFunc()
	columns, _, _ := term.TerminalSize(command.OutOrStdout())
	command.SetHelpFunc(func(c *cobra.Command, args []string) {
		help(c, args)
		cliflag.PrintSections(c.OutOrStdout(), sections, columns)
	})
	command.SetUsageFunc(func(c *cobra.Command) error {
		err := usage(c)
		cliflag.PrintSections(c.OutOrStderr(), sections, columns)
		return err
	})
}

// startedBy is the factory, which also starts the work, once.
func (w *clusterWork) startedBy(factory frameworkruntime.PluginFactory) frameworkruntime.PluginFactory {
	return func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		made, err := factory(ctx, args, h)
		if err == nil && w.enabled {
			w.once.Do(func() { w.start(ctx, h) })
		}
		return made, err
	}
}

func (w *clusterWork) start(ctx context.Context, h fwk.Handle) {
	logger := klog.Background()
	ctrl.SetLogger(logger)
	ctx = klog.NewContext(ctx, logger)
	w.done.Go(func() {
		err := cluster.Run(ctx, h.KubeConfig(), cluster.Config{Driver: volume.DriverName, Namespace: w.namespace})
		if err != nil {
			logger.Error(err, "cluster-scoped work cannot run")
		}
	})
}

// wait returns when the work has ended and its Lease is free. With a leader
// election of its own the scheduler ends the process itself, and the Lease is
// given back at the same time as the scheduler's.
func (w *clusterWork) wait() { w.done.Wait() }
