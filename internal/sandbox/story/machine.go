package story

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/volume"
)

// mountRow is one row of a process's mount table.
type mountRow struct {
	// id is the mount's own number: one that is made again has another.
	id, target, fsType, source string
}

// readMounts reads the mount table of a process.
func readMounts(pid int) ([]mountRow, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "mountinfo")
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading a mount table: %w", err)
	}
	rows, err := parseMounts(string(raw))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return rows, nil
}

// parseMounts reads a mountinfo file (proc_pid_mountinfo(5)).
func parseMounts(text string) ([]mountRow, error) {
	var rows []mountRow
	for line := range strings.Lines(text) {
		// ID parent major:minor root target options [optional…] - fstype source options
		head, tail, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(head), strings.Fields(tail)
		if !ok || len(left) < 6 || len(right) < 2 {
			return nil, fmt.Errorf("the line %q is no mount", line)
		}
		rows = append(rows, mountRow{id: left[0], target: left[4], fsType: right[0], source: right[1]})
	}
	return rows, nil
}

// mountsOf are the rows of some devices: target → row.
func mountsOf(rows []mountRow, devices map[string]bool) map[string]mountRow {
	out := map[string]mountRow{}
	for _, r := range rows {
		if devices[r.source] {
			out[r.target] = r
		}
	}
	return out
}

// insideMount is what a pod sees mounted at a path.
func insideMount(pod *corev1.Pod, path string) (mountRow, error) {
	pid, err := pidOf(pod)
	if err != nil {
		return mountRow{}, err
	}
	rows, err := readMounts(pid)
	if err != nil {
		return mountRow{}, err
	}
	// The last one is uppermost.
	for _, r := range slices.Backward(rows) {
		if r.target == path {
			return r, nil
		}
	}
	return mountRow{}, fmt.Errorf("pod %s has nothing mounted at %s", pod.Name, path)
}

// imageMin is larger than anything in a pool that is not a volume's image.
const imageMin = 12 * volume.MiB

// imagesOf lists the volumes' images on a node's pool, by their paths.
func imagesOf(n sandbox.Node) ([]string, error) {
	var images []string
	err := filepath.WalkDir(n.Pool(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Size() >= imageMin {
			images = append(images, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for images: %w", err)
	}
	return images, nil
}

// checkImages wants the pools to hold one image for each of these volumes and
// no other.
func (t *teller) checkImages(volumes map[string]*corev1.PersistentVolume) error {
	want := map[string]string{} // name of the volume → its PersistentVolume
	for name, pv := range volumes {
		id, err := volume.ParseID(pv.Spec.CSI.VolumeHandle)
		if err != nil {
			return err
		}
		if other, double := want[id.Name]; double {
			return fmt.Errorf("PersistentVolumes %s and %s are one volume", other, name)
		}
		want[id.Name] = name
	}
	for _, n := range t.cluster.Nodes() {
		images, err := imagesOf(n)
		if err != nil {
			return err
		}
		for _, path := range images {
			id := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
			name, known := want[id]
			if !known {
				return fmt.Errorf("the image %s is no PersistentVolume's, or a second of one", path)
			}
			if on := nodeOf(volumes[name]); on != n.Name {
				return fmt.Errorf("the image of %s lies on %s, its affinity names %q", name, n.Name, on)
			}
			delete(want, id)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("no image is there of %s", strings.Join(slices.Sorted(maps.Values(want)), ", "))
	}
	return nil
}
