package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/internal/sandbox/podruntime"
)

func newLogsCommand() *cobra.Command {
	var dir, namespace, name string
	var follow bool
	cmd := &cobra.Command{
		Use:     "logs POD",
		Short:   "Print what a pod wrote to its output",
		Example: `  berth-sandbox logs web-0 --follow`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			state, err := sandbox.ReadState(dir)
			if err != nil {
				return err
			}
			var dirs []string
			for _, n := range state.Nodes {
				dirs = append(dirs, n.Runtime())
			}
			file, err := podruntime.LogFile(dirs, namespace, args[0], name)
			if err != nil {
				return err
			}
			return printLog(cmd.Context(), cmd.OutOrStdout(), file, follow)
		},
	}
	addDataDir(cmd.Flags(), &dir)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the pod")
	cmd.Flags().StringVarP(&name, "container", "c", "", "container of the pod; not needed when it has one")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until interrupted, or until the pod is gone")
	return cmd
}

// printLog copies a log, and with follow what is added to it.
func printLog(ctx context.Context, out io.Writer, path string, follow bool) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer f.Close()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the log: %w", err)
	}
	defer watcher.Close()
	// Watched before it is read, so that nothing is missed between the two.
	if err := watcher.Add(path); err != nil {
		return fmt.Errorf("watching the log: %w", err)
	}
	for {
		if _, err := io.Copy(out, f); err != nil {
			return fmt.Errorf("printing the log: %w", err)
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return fmt.Errorf("watching the log: %w", err)
		case e := <-watcher.Events:
			// While the file is open here, its removal shows as a change of its
			// number of names.
			if e.Has(fsnotify.Remove) || e.Has(fsnotify.Chmod) && gone(path) {
				_, err := io.Copy(out, f)
				return err
			}
		}
	}
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return os.IsNotExist(err)
}
