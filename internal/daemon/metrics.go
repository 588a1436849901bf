package daemon

import (
	"runtime"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-storage/berth/internal/program"
)

// BuildInfo is the metric berth_build_info: always 1, with the versions as labels.
func BuildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_build_info",
		Help: "Always 1; the labels say which Berth this is, and what it is built from.",
		ConstLabels: prometheus.Labels{
			"version": program.Version(), "kubernetes_version": program.KubernetesVersion(), "go_version": runtime.Version(),
		},
	}, func() float64 { return 1 })
}

// ControllerMetrics are the metrics of controller-runtime's controllers, for a
// program whose /metrics is another's: a Kubernetes component has metrics of Go,
// its process, its queues and its API client already, under the same names.
func ControllerMetrics() prometheus.Collector { return controllerMetrics{ctrlmetrics.Registry} }

const controllerPrefix = "controller_runtime_"

type controllerMetrics struct{ from prometheus.Gatherer }

// Describe describes nothing: which there are is known when they are collected.
func (controllerMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c controllerMetrics) Collect(out chan<- prometheus.Metric) {
	families, err := c.from.Gather()
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), controllerPrefix) {
			continue
		}
		for _, m := range f.GetMetric() {
			out <- gathered{desc: descOf(f, m), metric: m}
		}
	}
}

// gathered is a metric as another registry has gathered it.
type gathered struct {
	desc   *prometheus.Desc
	metric *dto.Metric
}

// Desc implements prometheus.Metric.
func (g gathered) Desc() *prometheus.Desc { return g.desc }

// Write implements prometheus.Metric.
func (g gathered) Write(to *dto.Metric) error {
	to.Label = slices.Clone(g.metric.GetLabel())
	to.Gauge, to.Counter, to.Summary = g.metric.GetGauge(), g.metric.GetCounter(), g.metric.GetSummary()
	to.Untyped, to.Histogram = g.metric.GetUntyped(), g.metric.GetHistogram()
	return nil
}

func descOf(f *dto.MetricFamily, m *dto.Metric) *prometheus.Desc {
	names := make([]string, 0, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		names = append(names, l.GetName())
	}
	return prometheus.NewDesc(f.GetName(), f.GetHelp(), names, nil)
}
