package render

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// workload is of every object what may hold containers.
type workload struct {
	Kind string
	Spec struct {
		Template corev1.PodTemplateSpec
	}
}

// stock is the container of the extender's kube-scheduler, whose image is upstream's.
const stock = "Deployment/scheduler"

// TestImage: every container of every workload has exactly the image asked for, but
// for the stock kube-scheduler.
func TestImage(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0a", 32)
	cases := map[string]struct{ reason, image, want string }{
		"shipped": {"the tag in kustomization.yaml", "", "berth:v0.1.0-dev"},
		"tag":     {"another registry and tag", "registry.example/storage/berth:v1.2.3", ""},
		"port":    {"a port is no tag", "localhost:5000/berth:v1", ""},
		"name":    {"another name altogether", "registry.example/our-berth:latest", ""},
		"digest":  {"pinned", "registry.example/berth" + digest, ""},
		"both":    {"pinned, with a tag for people", "registry.example/berth:v1" + digest, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.want == "" {
				tc.want = tc.image
			}
			for _, folder := range []string{Plugin, Extender} {
				text, err := Folder(folder, tc.image)
				if err != nil {
					t.Fatal(err)
				}
				images := imagesOf(t, text)
				// The agent's, and the scheduler's or the extender's, at least.
				if len(images) < 2 {
					t.Errorf("%s, %s: %d containers", folder, tc.reason, len(images))
				}
				for container, image := range images {
					if upstreams := folder == Extender && container == stock; !upstreams && image != tc.want {
						t.Errorf("%s, %s: %s runs %s, want %s", folder, tc.reason, container, image, tc.want)
					}
				}
			}
		})
	}
}

func imagesOf(t *testing.T, text []byte) map[string]string {
	t.Helper()
	images := make(map[string]string)
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var w workload
		err := decoder.Decode(&w)
		if errors.Is(err, io.EOF) {
			return images
		}
		if err != nil {
			// A kind whose spec.template is something else would hide its containers.
			t.Fatal(err)
		}
		pod := w.Spec.Template.Spec
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			images[w.Kind+"/"+c.Name] = c.Image
		}
	}
}

func TestNoImage(t *testing.T) {
	cases := map[string]struct{ reason, image string }{
		"no tag":    {"what runs would depend on the day", "registry.example/berth"},
		"not one":   {"kustomize would take it", "registry example/berth:v1"},
		"two":       {"a list is no image", "a:1,b:1"},
		"upper":     {"registries refuse it", "registry.example/Berth:v1"},
		"no digest": {"the digest is cut off", "registry.example/berth@sha256:12"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			text, err := Folder(Plugin, tc.image)
			if err == nil || !strings.Contains(err.Error(), "registry.example/berth:v1") || !strings.Contains(err.Error(), tc.image) {
				t.Errorf("%s: got %d bytes and %v", tc.reason, len(text), err)
			}
		})
	}
}
