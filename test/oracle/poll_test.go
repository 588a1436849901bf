package oracle

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/test/seeds"
)

// TestNoPoll: on clusters where a pod has something to bind, upstream returns at
// its next look and BerthVolumes at the event.
func TestNoPoll(t *testing.T) {
	fired := 0
	rounds := seeds.Rounds(t, 300, func(seed uint64, r *rand.Rand) {
		w := generate(r)
		w.others, w.stale = nil, nil
		node := bindable(w)
		if node == "" {
			return
		}
		// Never at a whole second, where upstream may look before or after.
		after := time.Duration(1+r.IntN(2500))*time.Millisecond + time.Microsecond
		for _, s := range sides() {
			want := modelOf(w, s.differences...).wait(after)
			synctest.Test(t, func(t *testing.T) {
				got, err := waits(t.Context(), w, s, node, after)
				if err != nil {
					t.Errorf("seed %d, %s: %v\n%s", seed, s.name, err, w)
				} else if got != want {
					t.Errorf("seed %d, %s: PreBind took %s, the binding was complete after %s, the model says %s\n%s", seed, s.name, got, after, want, w)
				}
			})
		}
		if modelOf(w).wait(after) != modelOf(w, plugin.DifferenceNoPoll).wait(after) {
			fired++
		}
	})
	t.Logf("fired    %-60s %6d", plugin.DifferenceNoPoll, fired)
	if rounds >= 300 && fired == 0 {
		t.Error("no cluster had anything to bind: the generator is at fault")
	}
}

// bindable is a node on which both sides have to bind something for the pod;
// empty for none. A claim named twice is none of them: upstream's second write of
// it fails. Nor is a world with free volumes of in-tree plugins: on a node that
// handles the plugin as CSI, both sides find out after the write that the
// translated volume is elsewhere.
func bindable(w *world) string {
	if slices.ContainsFunc(w.volumes, func(pv *corev1.PersistentVolume) bool { return pv.Spec.CSI == nil && pv.Spec.ClaimRef == nil }) {
		return ""
	}
	refs := refsOf(w.pod)
	if len(slices.Compact(slices.Sorted(slices.Values(names(refs))))) < len(refs) {
		return ""
	}
	theirs, ours := modelOf(w).answers(), modelOf(w, plugin.Differences()...).answers()
	node := theirs.feasible()
	if node == "" || !strings.HasPrefix(ours.nodes[node][0], "Success") || slices.Contains(theirs.writes[node], "nothing") {
		return ""
	}
	return node
}

func names(refs []ref) []string {
	var out []string
	for _, r := range refs {
		out = append(out, r.name)
	}
	return out
}
