package csiclient

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outcome is what the end of a CSI call means for what the caller does next.
type Outcome int

const (
	// Done: the call succeeded; what it asks for is so.
	Done Outcome = iota
	// Retry: the call failed for good and left nothing behind. The caller may
	// try again, after a pause, and owes no inverse call.
	Retry
	// Wait: nobody knows whether the call took effect. The caller repeats the
	// same call until it is Done, or makes the inverse call; it must not assume
	// that nothing happened.
	Wait
	// Stop: the call failed for good and will fail again until what it asks for
	// changes.
	Stop
)

// String names the outcome as logs and metrics do.
func (o Outcome) String() string {
	switch o {
	case Done:
		return "done"
	case Retry:
		return "retry"
	case Wait:
		return "wait"
	case Stop:
		return "stop"
	default:
		return "unknown"
	}
}

// OutcomeOf classifies the error of a CSI call.
//
// Wait follows the kubelet (csi_client.go, isFinalError) and the sidecars:
// Canceled, DeadlineExceeded, Unavailable, ResourceExhausted, Aborted and
// every error that is no gRPC status; Unknown too, since a driver whose handler
// was cut off says that. Stop follows external-resizer's and
// external-provisioner's infeasible codes. A caller that may choose another
// place asks IsExhausted first.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Done
	}
	st, ok := status.FromError(err)
	if !ok {
		return Wait
	}
	switch st.Code() {
	case codes.OK:
		return Done
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted,
		codes.Aborted, codes.Unavailable:
		return Wait
	case codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented:
		return Stop
	case codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition,
		codes.Internal, codes.DataLoss, codes.Unauthenticated:
		return Retry
	default:
		return Wait
	}
}

// IsExhausted reports that the driver has no room here: for CreateVolume, that
// another node should be chosen.
func IsExhausted(err error) bool { return status.Code(err) == codes.ResourceExhausted }

// IsNotFound reports that the driver knows no such volume.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }
