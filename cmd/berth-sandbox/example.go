package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-storage/berth/manifests"
)

func newExampleCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "example",
		Short:   "Print pods with volumes, to be applied with kubectl",
		Example: `  berth-sandbox example | berth-sandbox kubectl apply -f -`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := manifests.FS.ReadFile("examples/statefulset.yaml")
			if err != nil {
				return fmt.Errorf("reading the example: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
