package oracle

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/berth-storage/berth/scheduler/plugin"
)

// TestShrink: with a rule of the model switched off, a cluster is found on which
// that shows, and what is left of it is small and still shows it.
func TestShrink(t *testing.T) {
	var known []plugin.Difference
	for _, d := range plugin.Differences() {
		if d != plugin.DifferencePrebound {
			known = append(known, d)
		}
	}
	broken := []side{{name: "berth", make: berth, differences: known}}
	for seed := range uint64(2000) {
		w := generate(rand.New(rand.NewPCG(seed, 0)))
		// What another pod has reserved stands in no object.
		w.others = nil
		found, _, err := compare(t.Context(), w, broken, map[string]int{})
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 || found[0].what != "node" {
			continue
		}
		text := report(t, w, found[0], broken)
		t.Logf("seed %d: %s", seed, text)
		count := func(kind string) int { return strings.Count(text, "kind: "+kind+"\n") }
		if count("Node") != 1 || count("PersistentVolume") != 1 || count("PersistentVolumeClaim") != 1 || count("CSINode")+count("VolumeAttachment") != 0 {
			t.Errorf("a claim, its reserved volume and a node are enough; left is\n%s", text)
		}
		for _, want := range []string{"said:", "model:", "claimRef:"} {
			if !strings.Contains(text, want) {
				t.Errorf("the report does not tell %q", want)
			}
		}
		return
	}
	t.Fatal("2,000 clusters do not show that a rule of the model is off")
}
