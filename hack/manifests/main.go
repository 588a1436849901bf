// Command manifests prints what to apply to a cluster; see `make manifests`.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/berth-storage/berth/manifests/render"
)

func main() {
	image := flag.String("image", "", "image of every container, with a tag or a digest; empty: the one in manifests/base")
	flag.Parse()
	text, err := render.Base(*image)
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}
