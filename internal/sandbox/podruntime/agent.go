package podruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	podvolumesv1 "github.com/berth-storage/berth/nodeagent/podvolumes/v1"
)

// reconnectMax is the longest time between two tries to reach an agent that is
// not there.
const reconnectMax = time.Second

// reportTimeout bounds one Report.
const reportTimeout = 30 * time.Second

// Agent is the node agent behind its socket. It reports the pods that may live
// after every connect, so that an agent that was restarted knows them too.
type Agent struct {
	conn *grpc.ClientConn
	rpc  podvolumesv1.PodVolumesClient
	// reported is closed after the first Report: before it, the agent may still
	// hold pods of an earlier runtime for alive.
	reported chan struct{}

	// mu is held during a Report, so that none is on its way with an old list
	// when a pod is prepared.
	mu   sync.Mutex
	held map[types.UID]bool // guarded by mu; pods whose processes may exist
}

// DialAgent makes a client of the agent at socket, which need not be there yet.
func DialAgent(socket string) (*Agent, error) {
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectMax / 10, Multiplier: 1.6, MaxDelay: reconnectMax},
			MinConnectTimeout: reconnectMax,
		}))
	if err != nil {
		return nil, fmt.Errorf("making a client of the agent at %s: %w", socket, err)
	}
	return &Agent{
		conn: conn, rpc: podvolumesv1.NewPodVolumesClient(conn),
		reported: make(chan struct{}), held: make(map[types.UID]bool),
	}, nil
}

// Run reports after every connect until ctx ends, then closes the connection.
func (a *Agent) Run(ctx context.Context) error {
	for {
		state := a.conn.GetState()
		switch state {
		case connectivity.Ready:
			a.report(ctx)
		case connectivity.Idle:
			a.conn.Connect()
		default:
		}
		if !a.conn.WaitForStateChange(ctx, state) {
			return a.conn.Close()
		}
	}
}

// report tells the agent all pods that may live, and tries again as long as the
// connection holds.
func (a *Agent) report(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var uids []string
	for uid := range maps.Keys(a.held) {
		uids = append(uids, string(uid))
	}
	slices.Sort(uids)
	for a.conn.GetState() == connectivity.Ready {
		callCtx, cancel := context.WithTimeout(ctx, reportTimeout)
		_, err := a.rpc.Report(callCtx, &podvolumesv1.ReportRequest{PodUids: uids})
		cancel()
		if err == nil {
			select {
			case <-a.reported:
			default:
				close(a.reported)
			}
			return
		}
		klog.FromContext(ctx).Error(err, "reporting the pods to the agent failed")
		if !pause(ctx, reconnectMax) {
			return
		}
	}
}

// Prepare implements Volumes.
func (a *Agent) Prepare(ctx context.Context, pod *corev1.Pod) (map[string]Volume, error) {
	select {
	case <-a.reported:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the node agent: %w", ctx.Err())
	}
	a.mu.Lock()
	a.held[pod.UID] = true
	a.mu.Unlock()
	resp, err := a.rpc.Prepare(ctx, &podvolumesv1.PrepareRequest{Pod: &podvolumesv1.PodRef{
		Namespace: pod.Namespace, Name: pod.Name, Uid: string(pod.UID),
	}})
	if err != nil {
		// The message is for the pod's owner; it names the volumes that are missing.
		return nil, errors.New(status.Convert(err).Message())
	}
	volumes := make(map[string]Volume, len(resp.GetVolumes()))
	for _, v := range resp.GetVolumes() {
		volumes[v.GetName()] = Volume{Path: v.GetPath(), Block: v.GetBlock(), ReadOnly: v.GetReadOnly()}
	}
	return volumes, nil
}

// Release implements Volumes.
func (a *Agent) Release(ctx context.Context, pod types.UID) error {
	if _, err := a.rpc.Release(ctx, &podvolumesv1.ReleaseRequest{PodUid: string(pod)}); err != nil {
		return errors.New(status.Convert(err).Message())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.held, pod)
	return nil
}

// pause waits, and reports whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
