package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/host/process"
	"github.com/berth-storage/berth/internal/sandbox"
)

// Limits of the client of each scheduler, and of the PV controller: far above
// what the API server of one machine can serve.
const (
	ClientQPS   = 5000
	ClientBurst = 10000
)

// Options say where a rig runs.
type Options struct {
	// DataDir holds everything and is removed at the end.
	DataDir string
	// BinDir holds berth-sandbox and berth-scheduler.
	BinDir string
	// Progress is told what goes on.
	Progress io.Writer
	// KeepLogs, where given, is a folder that the logs of all processes are moved
	// to at the end.
	KeepLogs string
}

// Rig is a running control plane, and what was started beside it.
type Rig struct {
	options Options
	cluster *sandbox.Cluster
	client  kubernetes.Interface
	started map[string]*process.Process
}

// Start starts etcd and kube-apiserver in a folder of their own, and nothing
// else. On an error nothing is left behind.
func Start(ctx context.Context, options Options) (*Rig, error) {
	cluster, err := sandbox.Start(ctx, sandbox.Options{
		DataDir: options.DataDir, BinDir: options.BinDir, Skip: []sandbox.Component{sandbox.ControllerManager},
	})
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	r := &Rig{options: options, cluster: cluster, started: map[string]*process.Process{}}
	if r.client, err = kubernetes.NewForConfig(r.clientConfig()); err != nil {
		return nil, errors.Join(fmt.Errorf("making the client: %w", err), r.Close(context.WithoutCancel(ctx)))
	}
	if err := r.prepare(ctx); err != nil {
		return nil, errors.Join(err, r.Close(context.WithoutCancel(ctx)))
	}
	return r, nil
}

// clientConfig is the administrator's, without limits and in Kubernetes' own
// encoding, as components speak it.
func (r *Rig) clientConfig() *rest.Config {
	config := r.cluster.RESTConfig()
	config.QPS, config.Burst = -1, 0
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

// Client speaks to the API server without limits.
func (r *Rig) Client() kubernetes.Interface { return r.client }

// Logf tells what goes on.
func (r *Rig) Logf(format string, args ...any) {
	fmt.Fprintf(r.options.Progress, time.Now().Format(time.TimeOnly)+"  "+format+"\n", args...)
}

// stopGrace is how long a process may take to end before it is killed.
const stopGrace = 5 * time.Second

// launch starts a process that ends with the rig.
func (r *Rig) launch(name, program string, args ...string) (*process.Process, error) {
	p, err := process.Start(process.Spec{
		Name: name, Path: filepath.Join(r.options.BinDir, program), Args: args,
		// The sandbox's own: what a killed benchmark left is found by it.
		Marker: "BERTH_SANDBOX=" + r.cluster.DataDir(),
		Dir:    r.cluster.DataDir(), Log: r.logPath(name),
	})
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	r.started[name] = p
	return p, nil
}

func (r *Rig) logPath(name string) string {
	return filepath.Join(r.cluster.DataDir(), "logs", name+".log")
}

// Stop ends a process that was started by name.
func (r *Rig) Stop(ctx context.Context, name string) error {
	p, ok := r.started[name]
	if !ok {
		return nil
	}
	delete(r.started, name)
	return p.Stop(ctx, stopGrace)
}

// Close ends every process and removes the folder.
func (r *Rig) Close(ctx context.Context) error {
	var errs []error
	for name := range r.started {
		errs = append(errs, r.Stop(ctx, name))
	}
	if r.options.KeepLogs != "" {
		errs = append(errs, r.keepLogs())
	}
	errs = append(errs, r.cluster.Stop(ctx), sandbox.Leftovers(r.cluster.DataDir(), host.New(host.Options{})))
	return errors.Join(errs...)
}

func (r *Rig) keepLogs() error {
	if err := os.MkdirAll(r.options.KeepLogs, 0o755); err != nil {
		return fmt.Errorf("keeping the logs: %w", err)
	}
	logs, err := filepath.Glob(r.logPath("*"))
	if err != nil {
		return fmt.Errorf("keeping the logs: %w", err)
	}
	for _, log := range logs {
		raw, err := os.ReadFile(log)
		if err != nil {
			return fmt.Errorf("keeping the logs: %w", err)
		}
		if err := os.WriteFile(filepath.Join(r.options.KeepLogs, filepath.Base(log)), raw, 0o600); err != nil {
			return fmt.Errorf("keeping the logs: %w", err)
		}
	}
	return nil
}

// Usages is what every process of the rig, and the benchmark itself, has used,
// by name.
func (r *Rig) Usages() (map[string]Usage, error) {
	pids := map[string]int{"benchmark": os.Getpid()}
	for _, p := range r.cluster.Processes() {
		pids[p.Name()] = p.ID().PID
	}
	for name, p := range r.started {
		pids[name] = p.ID().PID
	}
	usages := make(map[string]Usage, len(pids))
	for name, pid := range pids {
		u, err := UsageOf(pid)
		if err != nil {
			return nil, err
		}
		usages[name] = u
	}
	return usages, nil
}

// prepare makes what pods need and a controller manager would make.
func (r *Rig) prepare(ctx context.Context) error {
	for _, ns := range []string{Namespace, sandbox.Namespace} {
		if _, err := r.client.CoreV1().Namespaces().Create(ctx, namespace(ns), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating namespace %s: %w", ns, err)
		}
	}
	_, err := r.client.CoreV1().ServiceAccounts(Namespace).Create(ctx, serviceAccount(), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating the service account of the pods: %w", err)
	}
	return nil
}
