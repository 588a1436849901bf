package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-storage/berth/test/bench/rig"
)

// readThroughput reads the one file of figures that a run left.
func readThroughput(dir string) (float64, error) {
	found, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return 0, fmt.Errorf("looking for the figures: %w", err)
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("the run left %d files of figures, want 1", len(found))
	}
	raw, err := os.ReadFile(found[0])
	if err != nil {
		return 0, fmt.Errorf("reading the figures: %w", err)
	}
	return rig.PerfThroughput(raw)
}
