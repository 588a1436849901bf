package oracle

import (
	"math/rand/v2"
	"testing"

	"github.com/berth-storage/berth/scheduler/plugin"
	"github.com/berth-storage/berth/test/seeds"
)

// TestHints: where an event gives the pod a node, BerthVolumes tries it again.
func TestHints(t *testing.T) {
	const usual = 2000
	var useful, fewer, more, missed int
	rounds := seeds.Rounds(t, usual, func(seed uint64, r *rand.Rand) {
		g := &generator{Rand: r}
		g.w = generate(r)
		g.w.others, g.w.stale, g.w.gaveBack, g.w.limits = nil, nil, nil, nil
		e, ok := g.change()
		if !ok {
			return
		}
		var woken []bool
		for _, s := range sides() {
			w, err := wakes(t.Context(), g.w, s, e)
			if err != nil {
				t.Fatal(err)
			}
			woken = append(woken, w)
		}
		all := plugin.Differences()
		nodes := gained(modelOf(g.w, all...).answers(), modelOf(e.world, all...).answers())
		if len(nodes) > 0 {
			useful++
		}
		if len(nodes) > 0 && !woken[1] {
			t.Errorf("seed %d: the event gives the pod %v, and does not wake it\n%s\n%s", seed, nodes, e, g.w)
		}
		switch theirs := len(gained(modelOf(g.w).answers(), modelOf(e.world).answers())) > 0; {
		case theirs && !woken[0]:
			missed++
		case woken[0] && !woken[1]:
			fewer++
		case !woken[0] && woken[1]:
			more++
		}
	})
	t.Logf("fired    %-60s %6d", plugin.DifferenceHints, fewer+more+missed)
	t.Logf("of %d events %d gave the pod a node; upstream alone wakes at %d, BerthVolumes alone at %d; upstream misses %d", rounds, useful, fewer, more, missed)
	if rounds >= usual && (useful == 0 || fewer == 0 || more == 0) {
		t.Error("not every kind of event came: the generator is at fault")
	}
}
