package plugin

import (
	"os"
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// TestMain registers the metrics that the framework runtime writes to.
func TestMain(m *testing.M) {
	metrics.Register()
	os.Exit(m.Run())
}
