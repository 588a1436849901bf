// Package render builds the shipped manifests for an image of the user's.
package render

import (
	"fmt"
	"io/fs"
	"path"

	"github.com/distribution/reference"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/manifests"
)

// Name is the image's name in the manifests, which stands for the real one.
const Name = "berth"

// The folders to apply, by the scheduler that pods ask for.
const (
	// Plugin has berth-scheduler.
	Plugin = "base"
	// Extender has a stock kube-scheduler with berth-extender.
	Extender = "extender"
)

// Folder is a folder of manifests as YAML, every container of Berth's with the
// image: a name with a tag, a digest or both. An empty image leaves the one that is
// shipped.
func Folder(folder, image string) ([]byte, error) {
	files := filesys.MakeFsInMemory()
	if err := copyInto(files); err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	overlay := types.Kustomization{Resources: []string{"../" + folder}}
	if image != "" {
		parsed, err := parse(image)
		if err != nil {
			return nil, err
		}
		overlay.Images = []types.Image{parsed}
	}
	text, err := yaml.Marshal(overlay)
	if err != nil {
		return nil, fmt.Errorf("writing the overlay: %w", err)
	}
	if err := files.WriteFile("overlay/kustomization.yaml", text); err != nil {
		return nil, fmt.Errorf("writing the overlay: %w", err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "overlay")
	if err != nil {
		return nil, fmt.Errorf("building the manifests: %w", err)
	}
	out, err := built.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("building the manifests: %w", err)
	}
	return out, nil
}

// parse wants a tag or a digest: without either, what a node runs depends on the
// day on which it pulls.
func parse(image string) (types.Image, error) {
	ref, err := reference.Parse(image)
	if err != nil {
		return types.Image{}, fmt.Errorf("image %q: use one such as registry.example/berth:v1: %w", image, err)
	}
	named, ok := ref.(reference.Named)
	if !ok {
		return types.Image{}, fmt.Errorf("image %q has no name; use one such as registry.example/berth:v1", image)
	}
	out := types.Image{Name: Name, NewName: named.Name()}
	if t, ok := ref.(reference.Tagged); ok {
		out.NewTag = t.Tag()
	}
	if d, ok := ref.(reference.Digested); ok {
		out.Digest = d.Digest().String()
	}
	if out.NewTag == "" && out.Digest == "" {
		return types.Image{}, fmt.Errorf("image %q has neither tag nor digest; use one such as registry.example/berth:v1", image)
	}
	return out, nil
}

func copyInto(files filesys.FileSystem) error {
	return fs.WalkDir(manifests.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := manifests.FS.ReadFile(name)
		if err != nil {
			return err
		}
		return files.WriteFile(path.Clean(name), text)
	})
}
