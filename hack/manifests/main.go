// Command manifests prints what to apply to a cluster; see `make manifests`.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/berth-storage/berth/manifests/render"
)

// folders are those to apply, by what -scheduler says.
var folders = map[string]string{"plugin": render.Plugin, "extender": render.Extender}

func main() {
	image := flag.String("image", "", "image of every container of Berth's, with a tag or a digest; empty: the one in the manifests")
	scheduler := flag.String("scheduler", "plugin", "plugin: berth-scheduler; extender: a stock kube-scheduler with berth-extender")
	flag.Parse()
	if err := run(*scheduler, *image); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

func run(scheduler, image string) error {
	folder, ok := folders[scheduler]
	if !ok {
		return fmt.Errorf("-scheduler=%s: use plugin or extender", scheduler)
	}
	text, err := render.Folder(folder, image)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}
