package oracle

import (
	"fmt"
	"slices"

	"github.com/berth-storage/berth/scheduler/plugin"
)

// firing are the differences that alone change what the model answers: added to
// none, or taken out of all.
func firing(w *world) []plugin.Difference {
	all := plugin.Differences()
	answers := func(d ...plugin.Difference) string { return fmt.Sprint(modelOf(w, d...).answers()) }
	none, every := answers(), answers(all...)
	var out []plugin.Difference
	for i, d := range all {
		if answers(d) != none || answers(slices.Delete(slices.Clone(all), i, i+1)...) != every {
			out = append(out, d)
		}
	}
	return out
}
