package main

import (
	"bytes"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-storage/berth/manifests"
)

func newExampleCommand() *cobra.Command {
	var scheduler string
	cmd := &cobra.Command{
		Use:     "example",
		Short:   "Print pods with volumes, to be applied with kubectl",
		Example: `  berth-sandbox example | berth-sandbox kubectl apply -f -`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := example(scheduler)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	addScheduler(cmd.Flags(), &scheduler)
	return cmd
}

// example is the shipped one, for a scheduler by its name in --scheduler.
func example(scheduler string) ([]byte, error) {
	name := schedulers[scheduler]
	if name == "" {
		return nil, fmt.Errorf("--scheduler: %q; use %s or %s", scheduler, schedulerPlugin, schedulerExtender)
	}
	text, err := manifests.FS.ReadFile("examples/statefulset.yaml")
	if err != nil {
		return nil, fmt.Errorf("reading the example: %w", err)
	}
	const field = "schedulerName: "
	return bytes.ReplaceAll(text, []byte(field+schedulers[schedulerPlugin]), []byte(field+name)), nil
}
