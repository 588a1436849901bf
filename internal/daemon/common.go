package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/berth-storage/berth/internal/program"
)

// Common are the options of every daemon.
type Common struct {
	// Kubeconfig is a path; empty means the pod's service account.
	Kubeconfig string
	// APIQPS and APIBurst bound the requests to the API server, the first per
	// second.
	APIQPS   float32
	APIBurst int
	// HTTPAddress is where /healthz, /readyz and /metrics are; empty means nowhere.
	HTTPAddress string
	// ShutdownGrace is how long the program may take to end.
	ShutdownGrace time.Duration

	logs *logsapi.LoggingConfiguration
}

// NewCommon is the defaults; the HTTP address differs from program to program.
func NewCommon(httpAddress string) *Common {
	return &Common{
		Kubeconfig: os.Getenv(clientcmd.RecommendedConfigPathEnvVar),
		APIQPS:     50, APIBurst: 100,
		HTTPAddress: httpAddress,
		// Less than the 30 seconds after which a kubelet kills.
		ShutdownGrace: 25 * time.Second,
		logs:          logs.NewOptions(),
	}
}

func (c *Common) addFlags(sets *cliflag.NamedFlagSets) {
	fs := sets.FlagSet("cluster")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "Path of a kubeconfig; empty means the pod's service account. Env: KUBECONFIG.")
	fs.Float32Var(&c.APIQPS, "kube-api-qps", c.APIQPS, "Requests a second to the API server, on average.")
	fs.IntVar(&c.APIBurst, "kube-api-burst", c.APIBurst, "Requests to the API server at once.")

	fs = sets.FlagSet("life")
	fs.StringVar(&c.HTTPAddress, "http-address", c.HTTPAddress, "Address of /healthz, /readyz (?verbose names each check) and /metrics; empty means none, port 0 any free port.")
	fs.DurationVar(&c.ShutdownGrace, "shutdown-grace-period", c.ShutdownGrace, "How long the program may take to end after SIGTERM or SIGINT; it is no longer ready from then on. A second signal ends it at once.")

	logsapi.AddFlags(c.logs, sets.FlagSet("logs"))
}

func (c *Common) validate(p *Problems) {
	if c.APIQPS <= 0 {
		p.Flag("kube-api-qps", "%g; use a number above 0", c.APIQPS)
	}
	if c.APIBurst <= 0 {
		p.Flag("kube-api-burst", "%d; use a number above 0", c.APIBurst)
	}
	if c.HTTPAddress != "" {
		_, port, err := net.SplitHostPort(c.HTTPAddress)
		if n, portErr := strconv.Atoi(port); err != nil || portErr != nil || n < 0 || n > 65535 {
			p.Flag("http-address", "%q is no address; use one such as 127.0.0.1:9808 or :9808", c.HTTPAddress)
		}
	}
	if c.ShutdownGrace <= 0 {
		p.Flag("shutdown-grace-period", "%s; use a time above 0, such as 25s", c.ShutdownGrace)
	}
	for _, e := range logsapi.Validate(c.logs, nil, nil) {
		p.Flag(logFlag(e.Field), "%s", e.ErrorBody())
	}
}

// logFlag is the flag of a field of the logging configuration.
func logFlag(field string) string {
	switch field {
	case "format":
		return "logging-format"
	case "flushFrequency":
		return "log-flush-frequency"
	case "verbosity":
		return "v"
	}
	return field
}

// RESTConfig reads --kubeconfig, or the pod's service account.
func (c *Common) RESTConfig(name string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = name + "/" + program.Version()
	config.QPS, config.Burst = c.APIQPS, c.APIBurst
	return config, nil
}

// Problems are all that is wrong with a configuration, to be told at once.
type Problems struct{ errs []error }

// Flag adds what is wrong with a flag: its value, and what to give instead.
func (p *Problems) Flag(name, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("--%s: %s", name, fmt.Sprintf(format, args...)))
}

// Err is all of them, a line each, or nil.
func (p *Problems) Err() error {
	if len(p.errs) == 0 {
		return nil
	}
	return fmt.Errorf("the configuration is wrong:\n%w", errors.Join(p.errs...))
}
