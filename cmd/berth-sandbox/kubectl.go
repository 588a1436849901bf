package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-storage/berth/internal/sandbox"
)

// newKubectlCommand stands in the list of commands; the work is done before
// cobra sees the arguments, since they are kubectl's.
func newKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [arguments]",
		Short:              "Run the built-in kubectl on the cluster",
		Example:            `  berth-sandbox kubectl get pods -A`,
		DisableFlagParsing: true,
		Run:                func(*cobra.Command, []string) {},
	}
}

// needsKubelet refuses what kubectl asks of a node's kubelet: it would end in a
// host name that cannot be found.
func needsKubelet(args []string) error {
	command := slices.IndexFunc(args[1:], func(a string) bool { return !strings.HasPrefix(a, "-") })
	if command < 0 {
		return nil
	}
	switch c := args[1+command]; c {
	case "logs":
		return errors.New("kubectl logs: a node of the sandbox has no kubelet; use: berth-sandbox logs POD")
	case "exec", "attach", "cp", "port-forward", "debug":
		return fmt.Errorf("kubectl %s: a node of the sandbox has no kubelet to do it", c)
	}
	return nil
}

// pointKubectl points kubectl at the sandbox. `--data-dir DIR` right after
// "kubectl" is taken for the sandbox's; a --kubeconfig of the user's wins.
func pointKubectl(args []string) ([]string, error) {
	if err := needsKubelet(args); err != nil {
		return nil, err
	}
	dir := sandbox.DefaultDataDir
	if env := os.Getenv(envDataDir); env != "" {
		dir = env
	}
	if len(args) > 1 {
		if v, ok := strings.CutPrefix(args[1], "--data-dir="); ok {
			dir, args = v, slices.Delete(slices.Clone(args), 1, 2)
		} else if args[1] == "--data-dir" && len(args) > 2 {
			dir, args = args[2], slices.Delete(slices.Clone(args), 1, 3)
		}
	}
	for _, a := range args {
		if a == "--kubeconfig" || strings.HasPrefix(a, "--kubeconfig=") || a == "--help" || a == "-h" {
			return args, nil
		}
	}
	state, err := sandbox.ReadState(dir)
	if err != nil {
		return nil, err
	}
	return args, os.Setenv("KUBECONFIG", state.Kubeconfig)
}
