package main

import (
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-storage/berth/internal/clusterwork"
	"github.com/berth-storage/berth/internal/daemon"
	"github.com/berth-storage/berth/scheduler/args"
	"github.com/berth-storage/berth/scheduler/extender"
)

// options is the whole configuration of the program: each field is one flag.
type options struct {
	schedulerName string
	uncalledAfter time.Duration
	leaderLease   string
	argsFile      string
	serve         serveOptions
	cluster       *clusterwork.Work
	common        *daemon.Common

	// args is what argsFile says, read by validate.
	args args.Args
}

// serveOptions say where the extender API is, and who may call it.
type serveOptions struct {
	address                     string
	certFile, keyFile, clientCA string
	clientNames                 []string
	tokenFile                   string
}

func newOptions() *options {
	common := daemon.NewCommon("127.0.0.1:10270")
	// kube-scheduler's own, for it is as busy.
	common.APIQPS, common.APIBurst = 100, 200
	return &options{
		schedulerName: "berth-extender", uncalledAfter: extender.Patience,
		serve:   serveOptions{address: "127.0.0.1:10269", clientNames: []string{"system:kube-scheduler"}},
		cluster: clusterwork.New(), common: common,
	}
}

func (o *options) addFlags(sets *cliflag.NamedFlagSets) {
	fs := sets.FlagSet("scheduler")
	fs.StringVar(&o.schedulerName, "scheduler-name", o.schedulerName, "The schedulerName of the kube-scheduler that calls.")
	fs.DurationVar(&o.uncalledAfter, "uncalled-after", o.uncalledAfter, "How long pods with volumes that name the scheduler may wait before it is told that no kube-scheduler asks: by an event on them, in /readyz and as berth_extender_uncalled_pods. The first call ends this watch.")
	fs.StringVar(&o.leaderLease, "leader-lease", o.leaderLease, "Lease of the kube-scheduler's leader election, as namespace/name. While a kube-scheduler on another host holds it, nobody is expected to call; while nobody holds it, a call is. Empty: a call is always expected.")
	fs.StringVar(&o.argsFile, "args-file", o.argsFile, "File with the fields of BerthVolumesArgs, in YAML or JSON: bindTimeoutSeconds ("+strconv.Itoa(extender.BindTimeoutSeconds)+" by default; 10 less than the scheduler's httpTimeout at most), shape, attachLimitGraceSeconds, sharedPools.")

	fs = sets.FlagSet("serving")
	fs.StringVar(&o.serve.address, "serve-address", o.serve.address, "Address of the extender API: /filter, /prioritize, /preempt, /bind. One that is not of the loopback needs TLS, and callers that show who they are.")
	fs.StringVar(&o.serve.certFile, "tls-cert-file", o.serve.certFile, "Certificate of the server, PEM. A new one holds without a restart.")
	fs.StringVar(&o.serve.keyFile, "tls-private-key-file", o.serve.keyFile, "Its private key, PEM.")
	fs.StringVar(&o.serve.clientCA, "client-ca-file", o.serve.clientCA, "CA of client certificates, PEM. A new one holds without a restart.")
	fs.StringSliceVar(&o.serve.clientNames, "client-names", o.serve.clientNames, "Common names of the client certificates that may call.")
	fs.StringVar(&o.serve.tokenFile, "token-file", o.serve.tokenFile, "File with a token that may call, as bearer token or as the password of basic authentication. A new one holds at once. kube-scheduler can send it only within urlPrefix, which it writes to its log and to events when a call fails: prefer a client certificate.")

	o.cluster.AddFlags(sets.FlagSet("cluster work"), "")
}

// validate judges the flags and reads the args.
func (o *options) validate(p *daemon.Problems) {
	if problems := validation.IsDNS1123Subdomain(o.schedulerName); len(problems) > 0 {
		p.Flag("scheduler-name", "%q: %s", o.schedulerName, strings.Join(problems, "; "))
	}
	if o.uncalledAfter < time.Second {
		p.Flag("uncalled-after", "%s; use a time of a second or more, such as 1m", o.uncalledAfter)
	}
	if o.leaderLease != "" {
		namespace, name, _ := strings.Cut(o.leaderLease, "/")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			p.Flag("leader-lease", "%q is no namespace/name; give one such as kube-system/kube-scheduler", o.leaderLease)
		}
	}
	o.serve.validate(p)
	o.cluster.Validate(p)
	o.readArgs(p)
}

func (o *options) readArgs(p *daemon.Problems) {
	var raw []byte
	if o.argsFile != "" {
		var err error
		if raw, err = os.ReadFile(o.argsFile); err != nil {
			p.Flag("args-file", "%v", err)
			return
		}
	}
	a, err := args.Decode(raw, extender.BindTimeoutSeconds)
	if err != nil {
		p.Flag("args-file", "%s: %v", o.argsFile, err)
		return
	}
	o.args = a
}

func (s *serveOptions) validate(p *daemon.Problems) {
	host, port, err := net.SplitHostPort(s.address)
	if n, portErr := strconv.Atoi(port); err != nil || portErr != nil || n < 0 || n > 65535 {
		p.Flag("serve-address", "%q is no address; use one such as 127.0.0.1:10269", s.address)
		return
	}
	if (s.certFile == "") != (s.keyFile == "") {
		p.Flag("tls-cert-file", "a certificate and --tls-private-key-file belong together; give both or none")
	}
	if s.clientCA != "" && s.certFile == "" {
		p.Flag("client-ca-file", "client certificates need TLS; give --tls-cert-file and --tls-private-key-file too")
	}
	if s.clientCA != "" && len(s.clientNames) == 0 {
		p.Flag("client-names", "none; name who may call: a cluster's CA also signs the certificates of its nodes")
	}
	if loopback(host) {
		return
	}
	if s.certFile == "" {
		p.Flag("tls-cert-file", "missing: --serve-address %s can be reached from other hosts", s.address)
	}
	if s.clientCA == "" && s.tokenFile == "" {
		p.Flag("client-ca-file", "missing, and --token-file too: whoever reaches --serve-address %s could bind pods to nodes", s.address)
	}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// callers are who may call.
func (s *serveOptions) callers() extender.Callers {
	c := extender.Callers{TokenFile: s.tokenFile}
	if s.clientCA != "" {
		c.Names = s.clientNames
	}
	return c
}
