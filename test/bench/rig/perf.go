package rig

import (
	"encoding/json"
	"fmt"
)

// PerfThroughput is the average of pods a second in what scheduler_perf writes
// for one workload (k8s.io/kubernetes/test/integration/scheduler_perf, DataItems).
func PerfThroughput(raw []byte) (float64, error) {
	var items struct {
		DataItems []struct {
			Data   map[string]float64 `json:"data"`
			Labels map[string]string  `json:"labels"`
		} `json:"dataItems"`
	}
	if err := json.Unmarshal(raw, &items); err != nil {
		return 0, fmt.Errorf("the figures of scheduler_perf: %w", err)
	}
	var found []float64
	for _, item := range items.DataItems {
		if average, ok := item.Data["Average"]; ok && item.Labels["Metric"] == "SchedulingThroughput" {
			found = append(found, average)
		}
	}
	if len(found) != 1 || found[0] <= 0 {
		return 0, fmt.Errorf("the figures of scheduler_perf have %d averages of SchedulingThroughput above 0, want 1: %v", len(found), found)
	}
	return found[0], nil
}
