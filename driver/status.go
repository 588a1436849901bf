package driver

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-storage/berth/driver/pool"
)

// refusal is an answer with a code of its own. It turns into a gRPC status where
// it leaves the driver, and its text stays plain where it is wrapped on the way.
type refusal struct {
	code codes.Code
	err  error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// GRPCStatus makes status.FromError and the gRPC server understand it.
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, r.Error()) }

func refuse(code codes.Code, format string, args ...any) error {
	return &refusal{code: code, err: fmt.Errorf(format, args...)}
}

// uncertainError is a failed call whose effects could not be taken back. The CO
// must be told so by a code that it does not take as final, or it would never
// call the inverse (kubelet, volume/csi/csi_client.go, isFinalError).
type uncertainError struct {
	err, takingBack error
}

func (e *uncertainError) Error() string {
	return fmt.Sprintf("%v; and taking back what was done: %v", e.err, e.takingBack)
}

func (e *uncertainError) Unwrap() error { return e.err }

// tookBack is the error of a call that failed and tried to undo itself.
func tookBack(err, takingBack error) error {
	if takingBack == nil {
		return err
	}
	return &uncertainError{err: err, takingBack: takingBack}
}

// statusOf makes the answer to the CO out of an error.
func statusOf(err error) error {
	return &refusal{code: codeOf(err), err: err}
}

func codeOf(err error) codes.Code {
	var (
		uncertain *uncertainError
		exists    *pool.ExistsError
		exhausted *pool.ExhaustedError
		damaged   *pool.DamagedError
		answer    *refusal
	)
	switch {
	case errors.As(err, &uncertain):
		return codes.Unavailable
	case errors.As(err, &answer):
		return answer.code
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, pool.ErrNotFound):
		return codes.NotFound
	case errors.Is(err, pool.ErrInUse), errors.Is(err, syscall.EBUSY):
		return codes.FailedPrecondition
	case errors.As(err, &exists):
		return codes.AlreadyExists
	case errors.As(err, &exhausted):
		return codes.ResourceExhausted
	case errors.As(err, &damaged):
		return codes.DataLoss
	default:
		return codes.Internal
	}
}
