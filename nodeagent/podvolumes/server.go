// Package podvolumes serves the local API for pod runtimes (podvolumes.proto)
// on a unix socket that only root can open. It waits on events and answers; what
// is true of a pod's volumes is the agent's to say.
package podvolumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/nodeagent/plan"
	podvolumesv1 "github.com/berth-storage/berth/nodeagent/podvolumes/v1"
	"github.com/berth-storage/berth/registrar"
)

// Volume is one volume of a pod, as far as it is.
type Volume struct {
	// Name is its name in pod.spec.volumes.
	Name string
	// Ready says that the volume is published at Path; else Why says why not.
	Ready    bool
	Path     string
	Block    bool
	ReadOnly bool
	Why      string
}

// Status is what the agent knows of a pod.
type Status struct {
	// Synced says that the agent knows all pods of its node.
	Synced bool
	// Found says that one of them has this UID; Pod and State are its.
	Found bool
	Pod   plan.Pod
	State plan.PodState
	// Released says that the runtime released it.
	Released bool
	// HandedOut says that Prepare answered for all volumes before.
	HandedOut bool
	// Volumes are in the order of pod.spec.volumes.
	Volumes []Volume
	// Held names what of a released or vanished pod is still published, or may be.
	Held []string
}

// Agent is what the server needs of the agent.
type Agent interface {
	// Status describes a pod. The channel is closed when something changes.
	Status(podUID string) (Status, <-chan struct{})
	// Bound asks the API server whether exactly this pod is bound to the node.
	Bound(ctx context.Context, pod plan.Pod) (bool, error)
	// HandOut durably gives the pod's volumes to the runtime; false if one of
	// them is not published any more.
	HandOut(podUID string) (bool, error)
	// Release durably ends the pod's use of its volumes.
	Release(podUID string) error
	// Report durably says which pods may have processes.
	Report(podUIDs []string) error
}

// Server implements the API over an Agent.
type Server struct {
	podvolumesv1.UnimplementedPodVolumesServer
	agent Agent
}

// NewServer makes a server.
func NewServer(agent Agent) *Server { return &Server{agent: agent} }

// Serve answers on socket until ctx ends. The caller holds the lock of the
// agent's root, so a socket that is there already is a dead one.
func Serve(ctx context.Context, socket string, agent Agent) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return fmt.Errorf("serving pod volumes: %w", err)
	}
	listener, mine, err := registrar.ListenPrivate(ctx, socket)
	if err != nil {
		return fmt.Errorf("serving pod volumes: %w", err)
	}
	server := grpc.NewServer()
	podvolumesv1.RegisterPodVolumesServer(server, NewServer(agent))
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	klog.FromContext(ctx).Info("serving pod volumes", "socket", socket)
	err = server.Serve(listener)
	if now, statErr := os.Lstat(socket); statErr == nil && os.SameFile(now, mine) {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "removing the pod volumes socket failed")
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serving pod volumes: %w", err)
}

// Prepare implements the API: it waits until all volumes are published and then
// hands them out, in that order, so that a crash in between hands out nothing.
func (s *Server) Prepare(ctx context.Context, r *podvolumesv1.PrepareRequest) (*podvolumesv1.PrepareResponse, error) {
	pod := plan.Pod{Namespace: r.GetPod().GetNamespace(), Name: r.GetPod().GetName(), UID: r.GetPod().GetUid()}
	if pod.Namespace == "" || pod.Name == "" || pod.UID == "" {
		return nil, status.Error(codes.InvalidArgument, "pod: namespace, name and uid are all needed")
	}
	ctx, cancel := answerInTime(ctx)
	defer cancel()
	for {
		now, changed := s.agent.Status(pod.UID)
		rsp, err := s.prepareNow(ctx, pod, now)
		if rsp != nil || err != nil {
			return rsp, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.Error(status.FromContextError(ctx.Err()).Code(), fmt.Sprintf("pod %s/%s: %s", pod.Namespace, pod.Name, missing(now)))
		}
	}
}

// prepareNow answers if that is possible without waiting.
func (s *Server) prepareNow(ctx context.Context, pod plan.Pod, now Status) (*podvolumesv1.PrepareResponse, error) {
	switch {
	case now.Released:
		return nil, status.Errorf(codes.FailedPrecondition, "pod %s/%s is released", pod.Namespace, pod.Name)
	case !now.Synced:
		return nil, nil
	case !now.Found:
		// The agent's own list may lag behind the runtime's.
		bound, err := s.agent.Bound(ctx, pod)
		if err != nil {
			return nil, status.Errorf(codes.Unavailable, "looking for pod %s/%s: %v", pod.Namespace, pod.Name, err)
		}
		if !bound {
			return nil, notFound(pod)
		}
		return nil, nil
	case now.Pod != pod:
		return nil, notFound(pod)
	case now.State != plan.PodActive && !now.HandedOut:
		return nil, status.Errorf(codes.FailedPrecondition, "pod %s/%s is %s", pod.Namespace, pod.Name, now.State)
	}
	rsp := &podvolumesv1.PrepareResponse{}
	for _, v := range now.Volumes {
		if !v.Ready {
			return nil, nil
		}
		rsp.Volumes = append(rsp.Volumes, &podvolumesv1.PodVolume{Name: v.Name, Path: v.Path, Block: v.Block, ReadOnly: v.ReadOnly})
	}
	given, err := s.agent.HandOut(pod.UID)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "handing out the volumes of pod %s/%s: %v", pod.Namespace, pod.Name, err)
	}
	if !given {
		return nil, nil
	}
	return rsp, nil
}

// Release implements the API.
func (s *Server) Release(ctx context.Context, r *podvolumesv1.ReleaseRequest) (*podvolumesv1.ReleaseResponse, error) {
	if r.GetPodUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "pod_uid is empty")
	}
	if err := s.agent.Release(r.GetPodUid()); err != nil {
		return nil, status.Errorf(codes.Unavailable, "releasing pod %s: %v", r.GetPodUid(), err)
	}
	ctx, cancel := answerInTime(ctx)
	defer cancel()
	for {
		now, changed := s.agent.Status(r.GetPodUid())
		if len(now.Held) == 0 {
			return &podvolumesv1.ReleaseResponse{}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.Error(status.FromContextError(ctx.Err()).Code(), "still to unpublish: "+strings.Join(now.Held, "; "))
		}
	}
}

// Report implements the API.
func (s *Server) Report(_ context.Context, r *podvolumesv1.ReportRequest) (*podvolumesv1.ReportResponse, error) {
	if err := s.agent.Report(r.GetPodUids()); err != nil {
		return nil, status.Errorf(codes.Unavailable, "taking in the report: %v", err)
	}
	return &podvolumesv1.ReportResponse{}, nil
}

func notFound(pod plan.Pod) error {
	return status.Errorf(codes.NotFound, "no pod %s/%s with uid %s is bound to this node", pod.Namespace, pod.Name, pod.UID)
}

// missing says what a pod waits for.
func missing(now Status) string {
	switch {
	case !now.Synced:
		return "the agent has not read the node's pods yet"
	case !now.Found:
		return "the agent has not seen the pod yet"
	}
	var parts []string
	for _, v := range now.Volumes {
		if !v.Ready {
			parts = append(parts, fmt.Sprintf("volume %q: %s", v.Name, v.Why))
		}
	}
	return strings.Join(parts, "; ")
}

// answerMargin is kept from the caller's deadline for the way back: a client
// whose deadline has passed does not read what the server says.
const answerMargin = 100 * time.Millisecond

func answerInTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(answerMargin, time.Until(deadline)/10)))
}
