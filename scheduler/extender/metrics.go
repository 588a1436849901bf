package extender

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the service's own.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers them. promises and uncalled are read when they are asked for.
func NewMetrics(registry prometheus.Registerer, promises, uncalled func() float64) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_extender_requests_total", Help: "Requests of kube-scheduler, by verb and HTTP status.",
		}, []string{"verb", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_extender_request_duration_seconds", Help: "How long a request took; a bind waits for volumes.",
			Buckets: []float64{.0002, .0005, .001, .002, .005, .01, .025, .1, .5, 1, 5, 20},
		}, []string{"verb"}),
	}
	registry.MustRegister(m.requests, m.duration,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_extender_promises", Help: "Pods whose volumes are promised and not bound yet.",
		}, promises),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_extender_uncalled_pods", Help: "Pods with claims that wait although kube-scheduler has never asked about any; above 0 its configuration lacks this extender, or it does not run.",
		}, uncalled))
	return m
}

func (m *Metrics) observe(verb string, code int, took time.Duration) {
	m.requests.WithLabelValues(verb, strconv.Itoa(code)).Inc()
	m.duration.WithLabelValues(verb).Observe(took.Seconds())
}
