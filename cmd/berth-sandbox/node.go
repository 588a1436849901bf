package main

import "github.com/spf13/cobra"

func newNodeCommand() *cobra.Command {
	return &cobra.Command{Use: "node", Hidden: true, RunE: func(*cobra.Command, []string) error { return nil }}
}
func newLogsCommand() *cobra.Command {
	return &cobra.Command{Use: "logs", RunE: func(*cobra.Command, []string) error { return nil }}
}
func newDemoCommand() *cobra.Command {
	return &cobra.Command{Use: "demo", RunE: func(*cobra.Command, []string) error { return nil }}
}
