package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-storage/berth/internal/sandbox/podruntime"
)

// nodeOptions are the flags of node.
type nodeOptions struct {
	kubeconfig, podVolumesSocket string
	runtime                      podruntime.Config
}

func newNodeCommand() *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:    "node",
		Short:  "Run the pods of one node (started by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return runNode(cmd.Context(), o) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.runtime.NodeName, "node-name", "", "name of the node")
	fs.StringVar(&o.runtime.Zone, "zone", "", "zone of the node")
	fs.StringVar(&o.runtime.Dir, "dir", "", "folder of the runtime")
	fs.StringVar(&o.runtime.Hide, "hide", "", "folder that pods see empty")
	fs.StringVar(&o.runtime.Marker, "marker", "", "environment marker of the containers, KEY=value")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the node's user")
	fs.StringVar(&o.podVolumesSocket, "podvolumes-socket", "", "socket of the node agent; empty: no CSI volumes")
	return cmd
}

func runNode(ctx context.Context, o nodeOptions) error {
	rest, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	rest.QPS, rest.Burst = 100, 200
	server, err := url.Parse(rest.Host)
	if err != nil {
		return fmt.Errorf("reading the server of the kubeconfig: %w", err)
	}
	o.runtime.APIHost, o.runtime.APIPort = server.Hostname(), server.Port()
	if o.runtime.Client, err = kubernetes.NewForConfig(rest); err != nil {
		return fmt.Errorf("making the client: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	if o.podVolumesSocket != "" {
		agent, err := podruntime.DialAgent(o.podVolumesSocket)
		if err != nil {
			return err
		}
		o.runtime.Volumes = agent
		group.Go(func() error { return agent.Run(ctx) })
	}
	group.Go(func() error { return podruntime.New(o.runtime).Run(ctx) })
	return group.Wait()
}
